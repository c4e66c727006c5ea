"""Processing step results: how the samples of a step change its sequences."""

from app.engine.schedule.sequence import PAUSED, RUNNING
from app.engine.schedule.step_plan import Sample, StepResult
from tests.engine.schedule.fake_groups import launch_draft, make_drafting_driver
from tests.engine.schedule.fake_model import Driver


def update_with(driver: Driver, *token_ids: int):
    """Update the scheduler with the oldest step as if it had sampled these tokens."""
    plan, result = driver.in_flight.popleft()
    driver.model.done(plan.step)
    samples = tuple(Sample(one.sequence_id, token) for one, token in zip(result.samples, token_ids, strict=True))
    return driver.scheduler.update(StepResult(plan.step, samples), 0.0)


def test_each_sequence_gains_its_sample_in_the_order_of_the_logit_rows():
    driver = Driver()
    first, second = driver.add(), driver.add(n=2)
    driver.launch()
    progress = update_with(driver, 5, 6, 7)
    assert [(one, sample.token_id) for one, sample in progress.gained] == [
        (first, 5), (second, 6), (second.group.sequences[1], 7),
    ]  # fmt: skip
    assert [one.output_token_ids for one in (first, *second.group.sequences)] == [[5], [6], [7]]
    assert list(progress.groups) == [first.group, second.group, second.group]


def test_computed_tokens_are_counted_and_full_blocks_are_cached():
    driver = Driver(max_num_batched_tokens=10)
    sequence = driver.add(num_prompt=14)
    driver.launch()
    assert (sequence.num_computed, sequence.num_kept) == (0, 0)
    update_with(driver)
    assert (sequence.num_computed, sequence.num_kept) == (10, 2)


def test_forks_count_the_prompt_computed_by_their_leader():
    driver = Driver()
    leader = driver.add(num_prompt=6, n=3)
    driver.launch()
    update_with(driver, 5, 6, 7)
    assert [one.num_computed for one in leader.group.sequences] == [6, 6, 6]


def test_samples_of_preempted_sequences_are_kept_of_finished_ones_dropped():
    driver = Driver()
    aborted, preempted = driver.add(), driver.add()
    driver.launch()
    driver.scheduler.abort("r1")
    driver.scheduler.preemption.preempt(preempted.group)
    progress = update_with(driver, 5, 6)
    assert [one for one, _ in progress.gained] == [preempted]
    assert aborted.output_token_ids == [] and preempted.output_token_ids == [6] and preempted.num_computed == 0


def test_a_preempted_group_pauses_after_its_next_token():
    driver = Driver()
    sequence = driver.add(max_tokens=9)
    driver.steps(2)
    driver.scheduler.preemption.preempt(sequence.group)
    driver.launch()
    driver.scheduler.pause("r1")
    assert sequence.status is RUNNING and sequence.group.is_protected
    driver.finish_step()
    assert sequence.status is PAUSED and not sequence.group.is_protected


def test_a_search_advances_when_all_its_beams_are_sampled():
    driver = Driver()
    leader = driver.add(max_tokens=3, use_beam_search=True, beam_width=2)
    driver.launch()
    plan, result = driver.in_flight.popleft()
    driver.model.done(plan.step)
    progress = driver.scheduler.update(result, 0.0)
    assert progress.gained == [] and progress.searching == [leader.group] and progress.searched == []
    assert len(leader.group.open) == 2


def test_a_preempted_beam_is_sampled_again():
    driver = Driver(run_ahead=1)
    leader = driver.add(max_tokens=9, use_beam_search=True, beam_width=2)
    driver.run_until(lambda: len(leader.group.open) == 2)
    while not driver.in_flight:
        driver.launch()
    before = [one.num_tokens for one in leader.group.open]
    driver.scheduler.preemption.preempt(leader.group)
    driver.finish_step()
    assert [one.num_tokens for one in leader.group.open] == [n - 1 for n in before]
    driver.run(max_steps=40)


def test_accepted_draft_tokens_are_gained_in_order():
    driver = make_drafting_driver(longest=2)
    sequence, other = driver.add(max_tokens=30, top_k=1), driver.add(max_tokens=30)
    launch_draft(driver)
    progress = update_with(driver, 1, 1, 8, 9)
    assert [(one, sample.token_id) for one, sample in progress.gained] == [
        (sequence, 1), (sequence, 1), (sequence, 8), (other, 9),
    ]  # fmt: skip
    assert sequence.output_token_ids[-3:] == [1, 1, 8] and other.output_token_ids[-1] == 9
