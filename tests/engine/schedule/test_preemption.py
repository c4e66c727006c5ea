"""Preemption: who gives its blocks up, how it starts again, and steps that run ahead."""

import pytest

from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, UNKNOWN_TOKEN_ID, WAITING
from tests.engine.schedule.fake_model import Driver, reference


def statuses(*sequences):
    return [sequence.status for sequence in sequences]


def started(*num_prompts: int, num_blocks: int, **limits: int):
    """A driver after the step in which sequences with these prompts started, and the sequences."""
    driver = Driver(num_blocks=num_blocks, **limits)
    sequences = [driver.add(num_prompt, max_tokens=8) for num_prompt in num_prompts]
    driver.step()
    assert statuses(*sequences) == [RUNNING] * len(sequences)
    return driver, sequences


def test_the_newest_gives_its_blocks_to_older_ones():
    driver, sequences = started(8, 8, 5, num_blocks=7)  # one block is free, two are asked for
    driver.step()
    assert statuses(*sequences) == [RUNNING, RUNNING, PREEMPTED]
    assert sequences[2].block_table == []
    assert sequences[2].num_preemptions == driver.scheduler.num_preemptions == 1


def test_the_newest_gives_its_own_blocks_up_when_it_lacks_one():
    driver, (old, young) = started(8, 7, num_blocks=5)
    driver.steps(2)
    assert statuses(old, young) == [RUNNING, PREEMPTED]


def test_a_victim_starts_again_with_all_its_tokens_and_ends_with_the_same_answer():
    driver, (*_, victim) = started(8, 8, 5, num_blocks=7)
    driver.step()
    assert victim.num_tokens == 6
    driver.run_until(lambda: victim.status is RUNNING)
    assert victim.num_computed == 6 and len(victim.output_token_ids) == 2
    driver.run(max_steps=20)
    for sequence in driver.finished:
        assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 8)


def test_a_victim_starts_before_requests_that_never_ran():
    driver, (*_, victim) = started(8, 8, 5, num_blocks=7)
    driver.step()
    new = driver.add(num_prompt=1, max_tokens=9)
    driver.run_until(lambda: victim.status is RUNNING or new.status is RUNNING)
    assert victim.status is RUNNING
    driver.run(max_steps=30)


def test_paused_sequences_are_victims_before_running_ones_whatever_their_age():
    driver, (paused, old, young) = started(4, 4, 4, num_blocks=6)
    driver.scheduler.pause("r1")
    driver.run_until(lambda: paused.status is not PAUSED)
    assert statuses(paused, old, young) == [PREEMPTED, RUNNING, RUNNING]


def test_a_paused_victim_waits_for_resume():
    driver, (sequence,) = started(4, num_blocks=8)
    driver.scheduler.pause("r1")
    driver.scheduler.preempt(sequence)
    assert sequence.status is PREEMPTED and not sequence.ready
    assert driver.step() is None and not driver.scheduler.has_ready_work
    driver.scheduler.resume("r1")
    driver.run(max_steps=10)


def test_paused_sequences_make_room_for_a_request_that_fits_then():
    driver, (old, young) = started(8, 8, num_blocks=5)
    driver.scheduler.pause("r1")
    driver.scheduler.pause("r2")
    new = driver.add(num_prompt=8, max_tokens=1)
    driver.step()
    assert statuses(old, young, new) == [PAUSED, PREEMPTED, FINISHED]


def test_paused_sequences_keep_their_blocks_when_these_would_not_be_enough():
    driver, (running, paused) = started(8, 4, num_blocks=9)
    driver.scheduler.pause("r2")
    driver.add(num_prompt=30, max_tokens=1)
    driver.step()
    assert statuses(running, paused) == [RUNNING, PAUSED]


def test_a_victim_is_no_victim_again_before_it_gained_a_token():
    """Nor is the first running sequence: here it waits, although it is the only other one."""
    driver = Driver(num_blocks=9, max_num_batched_tokens=2)
    old, victim = driver.add(1, max_tokens=30), driver.add(13, max_tokens=8)
    driver.run_until(lambda: len(victim.output_token_ids) == 1)
    driver.scheduler.preempt(victim)
    driver.step()
    assert victim.status is RUNNING and victim.is_protected
    seen = []
    while len(victim.output_token_ids) == 1:
        seen.append({chunk.sequence_id for chunk in driver.step().chunks})
        assert statuses(old, victim) == [RUNNING, RUNNING]
    assert {victim.id} in seen and {old.id, victim.id} in seen
    assert not victim.is_protected
    driver.step()
    assert victim.status is PREEMPTED and victim.num_preemptions == 2
    driver.run(max_steps=100)


def test_a_recomputing_victim_pauses_with_its_next_token():
    driver = Driver(max_num_batched_tokens=4)
    sequence = driver.add(8, max_tokens=9)
    driver.steps(3)
    driver.scheduler.preempt(sequence)
    driver.step()
    driver.scheduler.pause("r1")
    assert sequence.status is RUNNING and not sequence.ready
    driver.scheduler.resume("r1")
    driver.scheduler.pause("r1")
    num_tokens = len(sequence.output_token_ids)
    driver.run_until(lambda: sequence.status is not RUNNING)
    assert sequence.status is PAUSED and len(sequence.output_token_ids) == num_tokens + 1


def test_a_preemption_while_a_step_is_in_flight_loses_no_token():
    driver = Driver()
    sequence = driver.add(max_tokens=3)
    driver.launch()
    driver.scheduler.preempt(sequence)
    assert sequence.block_table == [] and driver.scheduler.num_free_blocks == 63
    assert driver.settle() == [sequence] and sequence.is_protected
    assert driver.scheduler.num_free_blocks == 64
    driver.run(max_steps=5)
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 3)


@pytest.mark.parametrize("status", [WAITING, PREEMPTED, FINISHED])
def test_who_holds_no_blocks_cannot_be_preempted(status):
    driver = Driver()
    sequence = driver.add()
    if status is not WAITING:
        driver.step()
        driver.scheduler.preempt(sequence) if status is PREEMPTED else driver.scheduler.finish(sequence)
    with pytest.raises(ValueError, match=f"from {status.value} to preempted"):
        driver.scheduler.preempt(sequence)
    assert sequence.status is status
    driver.scheduler.check_integrity()


@pytest.mark.parametrize("run_ahead", [0, 1, 3])
def test_a_pool_of_one_longest_request_serves_many_of_them(run_ahead):
    driver = Driver(num_blocks=8, max_num_seqs=16, max_model_len=32, run_ahead=run_ahead)
    for index in range(32):
        driver.add(num_prompt=1 + index % 20, max_tokens=32 - (1 + index % 20))
    driver.run(max_steps=3_000)
    assert len(driver.finished) == 32 and driver.scheduler.num_free_blocks == 8


def test_a_storm_of_long_requests_recomputes_a_bounded_amount():
    driver = Driver(num_blocks=8, max_num_seqs=32, max_num_batched_tokens=32)
    sequences = [driver.add(num_prompt=2, max_tokens=28) for _ in range(32)]
    num_steps = driver.run(max_steps=32 * 28)
    assert num_steps < 32 * 28 * 0.8
    assert max(sequence.num_preemptions for sequence in sequences) <= 6


# --- Steps that run ahead ---------------------------------------------------------------------------------------------


def test_running_ahead_plans_with_tokens_that_are_still_being_sampled():
    driver = Driver(run_ahead=2)
    sequence = driver.add(num_prompt=4, max_tokens=6)
    plans = [driver.launch() for _ in range(3)]
    assert [plan.chunks[0].token_ids for plan in plans[1:]] == [(UNKNOWN_TOKEN_ID,)] * 2
    assert [plan.chunks[0].start for plan in plans] == [0, 4, 5]
    driver.settle()
    driver.run(max_steps=10)
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 6)


def test_running_ahead_never_computes_more_than_the_request_can_use():
    driver = Driver(run_ahead=3)
    driver.add(num_prompt=4, max_tokens=2)
    assert driver.launch() and driver.launch()
    assert driver.launch() is None


def test_nobody_is_preempted_for_blocks_that_fences_will_free():
    driver = Driver(num_blocks=5, run_ahead=1)
    old, young = driver.add(4, max_tokens=9), driver.add(1, max_tokens=8)
    driver.add(1, max_tokens=4)
    driver.steps(4)
    assert driver.scheduler.num_free_blocks == 0
    driver.scheduler.abort("r3")  # step 4 is in flight, so its block is fenced
    plan = driver.step()
    assert [chunk.sequence_id for chunk in plan.chunks] == [young.id]
    plan = driver.step()
    assert [chunk.sequence_id for chunk in plan.chunks] == [old.id, young.id]
    assert driver.scheduler.num_preemptions == 0
    driver.run(max_steps=20)


def test_a_sequence_takes_a_new_row_only_when_all_its_tokens_are_known():
    driver = Driver(run_ahead=2)
    driver.add(num_prompt=4, max_tokens=8)
    driver.launch()
    driver.launch()
    driver.scheduler.pause("r1")
    driver.scheduler.resume("r1")
    assert driver.launch() is None
    driver.settle()
    assert driver.launch() is None
    driver.settle()
    (start,) = driver.launch().row_starts
    assert len(start.output_token_ids) == 2
    driver.run(max_steps=10)


def test_an_abandoned_step_leaves_fences_of_the_steps_after_it():
    driver = Driver(num_blocks=4, run_ahead=1)
    sequence = driver.add(num_prompt=4, max_tokens=8)
    first, second = driver.scheduler.schedule(0.0), driver.scheduler.schedule(0.0)
    assert driver.scheduler.abandon(first) == [sequence]
    assert driver.scheduler.num_free_blocks == 2
    driver.scheduler.check_integrity()
    assert driver.scheduler.abandon(second) == []
    assert driver.scheduler.num_free_blocks == 4
    driver.scheduler.check_integrity()
