"""Speculation: the limits of drafts, accepted and rejected draft tokens, and unchanged outputs.

With `top_k=1` an output has one different token (all draft tokens are accepted), with `top_k=2` two (many are
rejected): see `fake_tokens`. The driver compares every output with the reference.
"""

from random import Random

import pytest

from app.engine.schedule.sequence import PREEMPTED, RUNNING, SWAPPED
from app.engine.schedule.speculation.proposer import Proposer
from app.engine.schedule.step_plan import Sample, StepPlan, StepResult
from tests.engine.schedule.fake_groups import add_prompt, launch_draft, make_drafting_driver
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID
from tests.engine.schedule.open_requests import num_open


def lengths(plan: StepPlan | None) -> list[int]:
    """The number of tokens of each chunk."""
    return [len(chunk.token_ids) for chunk in plan.chunks] if plan else []


# --- Number of steps ----------------------------------------------------------------------------------------------


def test_without_the_setting_there_are_no_drafts():
    driver = Driver()
    driver.add(max_tokens=30, top_k=1)
    assert driver.scheduler.speculation is None
    assert driver.run(max_steps=31) == 30


def test_a_repetitive_output_takes_fewer_steps():
    driver = make_drafting_driver(longest=8)
    driver.add(max_tokens=100, top_k=1)
    assert driver.run(max_steps=30) < 25
    counts = driver.scheduler.speculation.counts
    assert counts.num_accepted_tokens == counts.num_draft_tokens > 70 and counts.num_drafts < 20


@pytest.mark.parametrize("seed", range(30))
def test_no_load_takes_more_steps_than_without_speculation(seed):
    """With a pool that is large enough, and all requests at once."""
    rng = Random(seed)
    sizes = [(rng.randint(1, 9), rng.randint(1, 60), rng.choice([None, 1, 2, 3])) for _ in range(rng.randint(1, 12))]
    num_steps, longest = [], rng.choice([1, 3, 8])
    for driver in (Driver(num_blocks=400), make_drafting_driver(longest, num_blocks=400)):
        for num_prompt, max_tokens, top_k in sizes:
            driver.add(num_prompt, max_tokens, arrival_time=0.0, top_k=top_k)
        num_steps.append(driver.run(max_steps=2000))
    assert num_steps[1] <= num_steps[0]


# --- The plan -----------------------------------------------------------------------------------------------------


def test_a_draft_follows_the_last_known_token_and_every_row_is_sampled():
    driver = make_drafting_driver(longest=2)
    first, second = driver.add(max_tokens=20), driver.add(max_tokens=20, top_k=1)
    plan = launch_draft(driver)
    plain, draft = plan.chunks
    assert plain.token_ids == (first.output_token_ids[-1],) and draft.token_ids == (1, 1, 1)
    assert draft.start == second.num_prompt + len(second.output_token_ids) - 1
    assert plan.logit_rows == (0, 1, 2, 3)
    assert [sampled.sequence_id for sampled in plan.sampled] == [1, 2, 2, 2]
    assert (plan.num_tokens, plan.num_draft_tokens, plan.num_prompt_tokens) == (4, 2, 0)
    driver.finish_step()
    assert len(second.output_token_ids) == len(first.output_token_ids) + 2


def test_a_draft_never_goes_beyond_the_last_token():
    for max_tokens in range(4, 24):
        driver = make_drafting_driver(longest=8)
        sequence = driver.add(num_prompt=3, max_tokens=max_tokens, top_k=1)
        while num_open(driver.scheduler):
            plan = driver.launch()
            assert all(chunk.start + len(chunk.token_ids) <= sequence.max_slots for chunk in plan.chunks)
            driver.finish_step()
        assert len(sequence.output_token_ids) == max_tokens


@pytest.mark.parametrize(
    "params, num_draft", [({}, 0), ({"ignore_eos": True}, 2), ({"ignore_eos": True, "stop_token_ids": [6]}, 1)]
)
def test_a_token_that_ends_the_output_is_not_drafted(params, num_draft):
    driver = make_drafting_driver()
    add_prompt(driver, "a", [*range(20, 30), 1, 1, EOS_TOKEN_ID, 6, 1], 20, top_k=1, **params)
    driver.step()
    assert driver.step().num_draft_tokens == num_draft


def test_beams_have_no_drafts(monkeypatch):
    monkeypatch.setattr(Proposer, "propose", lambda self, length: (5,) * length)
    driver = make_drafting_driver()
    driver.add(max_tokens=12, use_beam_search=True, beam_width=2)
    driver.run(max_steps=13)
    assert driver.scheduler.speculation.counts.num_drafts == 0


def test_each_choice_has_its_own_draft():
    driver = make_drafting_driver()
    driver.add(num_prompt=5, max_tokens=20, top_k=1, n=3)
    assert [length > 1 for length in lengths(launch_draft(driver))] == [True] * 3
    driver.finish_step()
    driver.run(max_steps=15)


@pytest.mark.parametrize("run_ahead", [0, 2])
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_draft_tokens_are_not_written_to_shared_blocks(block_size, run_ahead, monkeypatch):
    """The fake model rejects a write to a block of another table."""
    monkeypatch.setattr(Proposer, "gain", lambda self, length: 99.0)  # otherwise running ahead would be preferred
    for num_prompt in range(8, 17):
        driver = make_drafting_driver(longest=8, block_size=block_size, run_ahead=run_ahead, num_blocks=400)
        add_prompt(driver, "a", [1] * num_prompt, 30, top_k=2, n=3)
        while num_open(driver.scheduler):
            driver.launch()
            driver.finish_step()
            driver.scheduler.check_integrity()
        assert len(driver.finished) == 3 and driver.scheduler.speculation.counts.num_drafts > 0


# --- Rule 3: accepted tokens ----------------------------------------------------------------------------------------


def update_with(driver: Driver, *token_ids: int) -> None:
    """Update the scheduler as if the oldest step had sampled these tokens; the fake model's memory is then invalid."""
    plan, result = driver.in_flight.popleft()
    driver.model.done(plan.step)
    samples = tuple(Sample(one.sequence_id, token) for one, token in zip(result.samples, token_ids, strict=True))
    driver.scheduler.update(StepResult(plan.step, samples), 0.0)


@pytest.mark.parametrize("num_accepted", [0, 1, 2])
def test_samples_count_up_to_the_first_rejected_draft_token(num_accepted):
    driver = make_drafting_driver(longest=2)
    sequence = driver.add(max_tokens=30, top_k=1)
    launch_draft(driver)
    before, computed = list(sequence.output_token_ids), sequence.num_computed
    update_with(driver, *([1] * num_accepted + [7] * (3 - num_accepted)))
    assert sequence.output_token_ids == before + [1] * num_accepted + [7]
    assert sequence.num_computed == sequence.num_scheduled == computed + 1 + num_accepted
    assert sequence.num_tokens == sequence.num_scheduled + 1
    driver.scheduler.check_integrity()
    counts = driver.scheduler.speculation.counts
    assert (
        counts.num_drafts,
        counts.num_draft_tokens,
        counts.num_accepted_tokens,
    ) == (
        1,
        2,
        num_accepted,
    )


@pytest.mark.parametrize("sampled", [1, 7])
def test_only_accepted_draft_tokens_are_cached(sampled):
    driver = make_drafting_driver(longest=8)
    sequence, plan = driver.add(max_tokens=40, top_k=1), None
    while not (plan and plan.num_draft_tokens and sequence.num_scheduled % 4 == 0):
        plan = driver.launch()
        if not (plan.num_draft_tokens and sequence.num_scheduled % 4 == 0):
            driver.finish_step()
    known = [*sequence.prompt_token_ids, *sequence.output_token_ids]
    update_with(driver, *[sampled] * len(plan.logit_rows))
    num_computed = len(known) + (plan.num_draft_tokens if sampled == 1 else 0)
    again = add_prompt(driver, "again", [*known, *[1] * 9], 1)
    assert len(driver.scheduler.tables.find_hits(again)) == num_computed // 4


def test_an_aborted_request_gains_no_draft_token():
    driver = make_drafting_driver()
    sequence = driver.add(max_tokens=30, top_k=1)
    launch_draft(driver)
    count = len(sequence.output_token_ids)
    driver.scheduler.abort("r1")
    assert driver.finish_step() == [] and len(sequence.output_token_ids) == count
    assert driver.scheduler.tables.pool.num_free == 64 and driver.scheduler.speculation.counts.num_drafts == 0


def test_a_pause_with_a_draft_in_flight_loses_no_token():
    driver = make_drafting_driver()
    sequence = driver.add(max_tokens=30, top_k=1)
    plan = launch_draft(driver)
    count = len(sequence.output_token_ids)
    driver.scheduler.pause("r1")
    driver.finish_step()
    driver.scheduler.check_integrity()
    assert len(sequence.output_token_ids) == count + len(plan.logit_rows)
    driver.scheduler.resume("r1")
    driver.run(max_steps=20)


@pytest.mark.parametrize("num_host_blocks", [0, 20])
def test_a_preemption_with_a_draft_in_flight_loses_no_token(num_host_blocks):
    driver = make_drafting_driver(num_host_blocks=num_host_blocks, enable_prefix_caching=False)
    sequence = driver.add(max_tokens=30, top_k=1)
    plan = launch_draft(driver)
    count = len(sequence.output_token_ids)
    driver.scheduler.preemption.preempt(sequence.group)
    driver.finish_step()
    driver.scheduler.check_integrity()
    assert sequence.status is (SWAPPED if num_host_blocks else PREEMPTED)
    assert len(sequence.output_token_ids) == count + len(plan.logit_rows)
    driver.run(max_steps=20)


def test_a_draft_in_a_failed_step_is_dropped_and_backs_off():
    driver = make_drafting_driver()
    sequence = driver.add(max_tokens=40, top_k=1)
    launch_draft(driver)
    count = len(sequence.output_token_ids)
    driver.abandon()
    driver.scheduler.check_integrity()
    assert sequence.status is PREEMPTED and len(sequence.output_token_ids) == count
    assert driver.scheduler.speculation.counts.num_drafts == 0
    assert [driver.step().num_draft_tokens for _ in range(6)] == [0] * 6
    driver.run(max_steps=40)


# --- Rule 4: steps in flight ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_ahead", [1, 3])
def test_a_sequence_with_a_step_in_flight_has_no_draft(run_ahead):
    driver = make_drafting_driver(run_ahead=run_ahead)
    driver.add(max_tokens=40, top_k=1)
    for _ in range(20):
        assert not driver.step().num_draft_tokens


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_sequence_with_a_draft_in_flight_waits_and_others_run_ahead(run_ahead):
    driver = make_drafting_driver(longest=8, run_ahead=run_ahead)
    sequence, other = driver.add(max_tokens=40, top_k=1), driver.add(max_tokens=40)
    driver.run_until(lambda: len(sequence.output_token_ids) >= 9)
    for _ in range(2):
        while driver.in_flight:
            driver.finish_step()
        plan = driver.launch()
        sequence.proposer.chance = 0.99
    assert lengths(plan) == [9, 1]
    assert [chunk.sequence_id for chunk in driver.launch().chunks] == [other.id]
    driver.finish_step()
    driver.run(max_steps=100)


def test_a_draft_that_gains_less_than_running_ahead_is_not_tried():
    driver = make_drafting_driver(longest=1, run_ahead=1)
    driver.add(max_tokens=20, top_k=1)
    while num_open(driver.scheduler):
        while driver.in_flight:
            driver.finish_step()
        plan = driver.launch()
        assert plan is None or not plan.num_draft_tokens


def test_sequences_with_drafts_and_run_ahead_all_finish():
    driver = make_drafting_driver(run_ahead=1)
    sequences = [driver.add(max_tokens=30, top_k=1 + number % 3) for number in range(6)]
    driver.run_until(lambda: all(one.status is RUNNING for one in sequences))
    driver.run(max_steps=100)
    assert len(driver.finished) == 6 and driver.scheduler.tables.pool.num_free == 64
