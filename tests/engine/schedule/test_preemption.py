"""Preemption: the order of victims, and whether their blocks are swapped out or recomputed."""

import pytest

from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING
from tests.engine.schedule.fake_groups import add_prompt
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.fake_tokens import reference


def statuses(*sequences):
    return [sequence.status for sequence in sequences]


def started(*num_prompts: int, num_blocks: int, **limits):
    """A driver after the step in which sequences with these prompts started, and the sequences."""
    driver = Driver(num_blocks=num_blocks, **limits)
    sequences = [driver.add(num_prompt, max_tokens=8) for num_prompt in num_prompts]
    driver.step()
    assert statuses(*sequences) == [RUNNING] * len(sequences)
    return driver, sequences


# --- For growth: the order of victims -----------------------------------------------------------------------------


def test_the_newest_group_is_preempted_for_older_ones():
    driver, sequences = started(8, 8, 5, num_blocks=7)  # one block is free, two are needed
    driver.step()
    assert statuses(*sequences) == [RUNNING, RUNNING, PREEMPTED]
    assert sequences[2].block_table == []
    assert sequences[2].group.num_preemptions == driver.scheduler.preemption.counts.num_preemptions == 1


def test_the_newest_group_preempts_itself_when_it_lacks_a_block():
    driver, (old, young) = started(8, 7, num_blocks=5)
    driver.steps(2)
    assert statuses(old, young) == [RUNNING, PREEMPTED]


def test_the_last_group_in_the_policys_order_is_the_victim():
    driver = Driver(num_blocks=7)
    late = driver.add(5, max_tokens=8, arrival_time=9.0)
    driver.step()
    first, second = (driver.add(8, max_tokens=8, arrival_time=time) for time in (1.0, 2.0))
    driver.step()
    assert statuses(first, second, late) == [RUNNING] * 3
    driver.step()
    assert statuses(first, second, late) == [RUNNING, RUNNING, PREEMPTED]


def test_paused_groups_are_victims_before_running_ones():
    driver, (paused, old, young) = started(4, 4, 4, num_blocks=6)
    driver.scheduler.pause("r1")
    driver.run_until(lambda: paused.status is not PAUSED)
    assert statuses(paused, old, young) == [PREEMPTED, RUNNING, RUNNING]


def test_resuming_groups_are_victims_after_paused_ones():
    driver, sequences = started(16, 16, 16, 16, num_blocks=32, max_num_seqs=4)
    for sequence in sequences:
        driver.scheduler.pause(sequence.request.id)
    driver.add(1, max_tokens=32, arrival_time=0.0, n=4)  # takes their seats, and then their blocks one by one
    driver.step()
    for sequence in sequences[:2]:
        driver.scheduler.resume(sequence.request.id)
    lost: list[int] = []
    while len(lost) < 4:
        driver.step()
        lost += [number for number, one in enumerate(sequences) if one.status is PREEMPTED and number not in lost]
    assert lost == [3, 2, 1, 0]


def test_all_sequences_of_a_group_are_preempted_together():
    driver, _ = started(8, num_blocks=6)
    forks = driver.add(6, max_tokens=4, n=2)
    driver.run_until(lambda: forks.status is PREEMPTED)
    assert all(one.block_table == [] and one.row is None for one in forks.group.open)
    assert forks.group.num_preemptions == driver.scheduler.preemption.counts.num_preemptions == 1
    driver.run(max_steps=30)


def test_a_victim_is_not_preempted_again_before_it_gains_a_token():
    """The first running group is no victim either: it waits, although it is the only other one."""
    driver = Driver(num_blocks=9, max_num_batched_tokens=2, enable_prefix_caching=False)
    old, victim = driver.add(1, max_tokens=30), driver.add(13, max_tokens=8)
    driver.run_until(lambda: len(victim.output_token_ids) == 1)
    driver.scheduler.preemption.preempt(victim.group)
    driver.step()
    assert victim.status is RUNNING and victim.group.is_protected
    seen = []
    while len(victim.output_token_ids) == 1:
        seen.append({chunk.sequence_id for chunk in driver.step().chunks})
        assert statuses(old, victim) == [RUNNING, RUNNING]
    assert {victim.id} in seen and {old.id, victim.id} in seen
    assert not victim.group.is_protected
    driver.step()
    assert victim.status is PREEMPTED and victim.group.num_preemptions == 2
    driver.run(max_steps=100)


def test_a_group_that_preempts_itself_has_no_chunk_in_that_step():
    """After a restart one choice decodes while another still recomputes; then the first lacks a block."""
    driver = Driver(num_blocks=7, max_num_batched_tokens=3, enable_prefix_caching=False)
    driver.add(4, max_tokens=12)
    victim = driver.add(4, max_tokens=9, n=2)
    driver.run_until(lambda: len(victim.output_token_ids) == 4)
    driver.scheduler.preemption.preempt(victim.group)
    driver.run_until(lambda: victim.group.num_preemptions == 2)
    driver.run(max_steps=200)
    assert len(driver.finished) == 3


def test_no_group_is_preempted_if_fenced_blocks_will_suffice():
    driver = Driver(num_blocks=5, run_ahead=1)
    old, young = driver.add(4, max_tokens=9), driver.add(1, max_tokens=8)
    driver.add(1, max_tokens=4)
    driver.steps(4)
    assert driver.scheduler.tables.pool.num_free == 0
    driver.scheduler.abort("r3")  # step 4 is in flight, so its block is fenced
    plan = driver.step()
    assert [chunk.sequence_id for chunk in plan.chunks] == [young.id]
    plan = driver.step()
    assert [chunk.sequence_id for chunk in plan.chunks] == [old.id, young.id]
    assert driver.scheduler.preemption.counts.num_preemptions == 0
    driver.run(max_steps=20)


# --- For starts: PAUSED groups are preempted ------------------------------------------------------------------------


def test_paused_groups_are_preempted_for_a_request_that_fits_then():
    driver, (old, young) = started(8, 8, num_blocks=5)
    driver.scheduler.pause("r1")
    driver.scheduler.pause("r2")
    new = driver.add(num_prompt=8, max_tokens=1)
    driver.step()
    assert statuses(old, young, new) == [PAUSED, PREEMPTED, FINISHED]


def test_resuming_and_running_groups_are_not_preempted_for_a_start():
    driver, (resuming, running) = started(8, 8, num_blocks=6)
    driver.launch()
    driver.scheduler.pause("r1")
    driver.scheduler.resume("r1")
    assert driver.scheduler.tables.pool.num_free == 0 and not driver.scheduler.preemption.for_start(3)
    assert statuses(resuming, running) == [PAUSED, RUNNING]  # it waits for its step, and has three blocks
    driver.finish_step()


@pytest.mark.parametrize("is_ready", [True, False])
def test_groups_that_are_not_allowed_are_preempted_for_a_start(is_ready):
    driver, (first, second) = started(8, 8, num_blocks=6)
    if not is_ready:
        driver.scheduler.pause("r1")
    driver.scheduler.restrict({"new"} if is_ready else {"new", "r1"})
    new = add_prompt(driver, "new", range(21), 2)
    driver.step()
    assert statuses(first, second, new) == [PREEMPTED, PREEMPTED, RUNNING]


def test_paused_groups_keep_blocks_that_would_not_suffice():
    driver, (running, paused) = started(8, 4, num_blocks=9)
    driver.scheduler.pause("r2")
    driver.add(num_prompt=30, max_tokens=1)
    driver.step()
    assert statuses(running, paused) == [RUNNING, PAUSED]


def test_blocks_shared_by_paused_groups_count_if_all_are_preempted():
    driver = Driver(num_blocks=8)
    paused = []
    for name in ("a", "b"):  # b finds the four full blocks of a
        paused.append(add_prompt(driver, name, range(17)))
        driver.step()
    for name in ("a", "b"):
        driver.scheduler.pause(name)
    new = add_prompt(driver, "c", range(500, 530), 2)
    driver.step()
    assert statuses(*paused, new) == [PREEMPTED, PREEMPTED, RUNNING]


def test_a_group_that_did_not_fit_starts_when_blocks_are_freed():
    driver = Driver(num_blocks=24)
    for name in ("a", "b"):  # they share eight blocks
        add_prompt(driver, name, range(33), 4)
        driver.step()
    for name in ("a", "b"):
        driver.scheduler.pause(name)
    long, short = driver.add(1, max_tokens=30), driver.add(15, max_tokens=6)
    driver.step()
    waiting = add_prompt(driver, "waiting", range(500, 580), 1)  # 20 blocks and a watermark
    driver.steps(2)
    assert waiting.status is WAITING
    driver.scheduler.abort("a")  # this frees one block: b has the others
    driver.run_until(lambda: short.is_finished)
    driver.step()
    assert waiting.status is RUNNING and not long.is_finished


def test_a_group_that_did_not_fit_starts_when_its_prefix_is_cached():
    driver = Driver(num_blocks=16, max_num_batched_tokens=8, run_ahead=2)
    first = add_prompt(driver, "first", range(33), 12)
    waiting = add_prompt(driver, "waiting", [*range(33), *range(500, 512)], 2)  # 12 blocks, and 7 are free
    driver.steps(5)
    assert waiting.status is WAITING  # four blocks were cached when it was last considered
    driver.run_until(lambda: waiting.status is RUNNING)
    assert first.status is RUNNING and waiting.group.num_cached_tokens >= 24
    driver.run(max_steps=20)


@pytest.mark.parametrize("num_running", [2, 3])
def test_cached_blocks_of_a_paused_victim_are_not_counted_twice(num_running):
    driver = Driver(num_blocks=8)
    paused = add_prompt(driver, "a", range(17), 8)
    driver.steps(2)
    driver.scheduler.pause("a")
    running = add_prompt(driver, "b", range(300, 300 + 4 * num_running), 12)
    driver.step()
    new = add_prompt(driver, "c", [*range(17), *range(200, 214)], 2)  # 31 tokens, of which 16 are found
    driver.run_until(lambda: new.status is RUNNING)
    assert paused.status is PREEMPTED and running.is_finished
    driver.scheduler.resume("a")
    driver.run(max_steps=20)


# --- Restarts of victims ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_caching", [True, False])
def test_a_victim_restarts_with_all_its_tokens_and_has_the_same_output(is_caching):
    driver, (*_, victim) = started(8, 8, 5, num_blocks=7, enable_prefix_caching=is_caching)
    driver.step()
    assert victim.num_tokens == 6
    driver.run_until(lambda: victim.status is RUNNING)
    assert victim.num_computed == 6 and len(victim.output_token_ids) == 2
    driver.run(max_steps=20)
    for sequence in driver.finished:
        assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 8)


def test_a_victim_finds_its_own_blocks_and_loses_only_other_tokens():
    driver = Driver()
    victim = driver.add(num_prompt=9, max_tokens=9)
    driver.steps(6)  # 14 tokens are computed, 15 known
    driver.scheduler.preemption.preempt(victim.group)
    plan = driver.step()
    assert (plan.chunks.starts[0], plan.num_tokens) == (12, 3)
    assert victim.group.num_lost_tokens == driver.scheduler.planner.starts.counts.num_lost_tokens == 2
    assert victim.group.num_cached_tokens == 0  # only blocks cached before its first start count
    counts = driver.scheduler.planner.starts.counts
    assert counts.num_prefix_queries == 9 and counts.num_prefix_hits == 0
    driver.run(max_steps=10)


def test_lost_tokens_of_forks_count_the_prompt_once():
    driver = Driver(enable_prefix_caching=False)
    leader = driver.add(num_prompt=10, max_tokens=9, n=3)
    driver.steps(3)  # 12 tokens each
    driver.scheduler.preemption.preempt(leader.group)
    driver.run(max_steps=20)
    assert leader.group.num_lost_tokens == driver.scheduler.planner.starts.counts.num_lost_tokens == 10 + 3 * 2


def test_a_victim_restarts_before_waiting_requests_start():
    driver, (*_, victim) = started(8, 8, 5, num_blocks=7)
    driver.step()
    new = driver.add(num_prompt=1, max_tokens=9)
    driver.run_until(lambda: victim.status is RUNNING or new.status is RUNNING)
    assert victim.status is RUNNING
    driver.run(max_steps=30)


def test_a_paused_victim_restarts_only_after_resume():
    driver, (sequence,) = started(4, num_blocks=8)
    driver.scheduler.pause("r1")
    driver.scheduler.preemption.preempt(sequence.group)
    assert sequence.status is PREEMPTED and not sequence.group.ready
    assert driver.step() is None and not driver.scheduler.queues.has_ready
    driver.scheduler.resume("r1")
    driver.run(max_steps=10)


def test_a_recomputing_victim_pauses_after_its_next_token():
    driver = Driver(max_num_batched_tokens=4, enable_prefix_caching=False)
    sequence = driver.add(8, max_tokens=9)
    driver.steps(3)
    driver.scheduler.preemption.preempt(sequence.group)
    driver.step()
    driver.scheduler.pause("r1")
    assert sequence.status is RUNNING and not sequence.group.ready
    driver.scheduler.resume("r1")
    driver.scheduler.pause("r1")
    num_tokens = len(sequence.output_token_ids)
    driver.run_until(lambda: sequence.status is not RUNNING)
    assert sequence.status is PAUSED and len(sequence.output_token_ids) == num_tokens + 1


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_a_preemption_while_steps_are_in_flight_loses_no_token(run_ahead):
    driver = Driver(run_ahead=run_ahead)
    sequence = driver.add(max_tokens=5)
    for _ in range(run_ahead + 1):
        driver.launch()
    driver.scheduler.preemption.preempt(sequence.group)
    assert sequence.block_table == [] and driver.scheduler.tables.pool.num_fenced > 0
    for _ in range(run_ahead + 1):
        assert driver.finish_step() == [sequence] and sequence.group.is_protected
    assert driver.scheduler.tables.pool.num_free == 64
    driver.run(max_steps=5)
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 5)


@pytest.mark.parametrize("status", [WAITING, PREEMPTED, FINISHED])
def test_a_group_without_blocks_cannot_be_preempted(status):
    driver = Driver()
    sequence = driver.add()
    if status is not WAITING:
        driver.step()
        scheduler = driver.scheduler
        scheduler.preemption.preempt(sequence.group) if status is PREEMPTED else scheduler.finish(sequence)
    with pytest.raises(ValueError, match=f"is {status.value}; it holds no blocks"):
        driver.scheduler.preemption.preempt(sequence.group)
    assert sequence.status is status
    driver.scheduler.check_integrity()


# --- Recompute or swap ------------------------------------------------------------------------------------------------


def learn(driver: Driver, token_s: float) -> None:
    """Make the cost model learn `token_s`."""
    for number in range(40):
        driver.scheduler.budget.cost.observe(1 + number % 20, 1, token_s * (1 + number % 20))


@pytest.mark.parametrize("token_s, block_s, status", [(1e-3, 1e-3, SWAPPED), (1e-3, 9e-3, PREEMPTED)])
def test_a_victim_is_swapped_if_that_is_predicted_to_be_faster(token_s, block_s, status):
    driver, (sequence,) = started(8, num_blocks=16, num_host_blocks=16)
    learn(driver, token_s)
    driver.scheduler.tables.swap.block_s = block_s  # out and in again: 4 blocks to move, or 8 tokens to compute
    driver.scheduler.preemption.preempt(sequence.group)
    assert sequence.status is status
    num_swaps = driver.scheduler.preemption.counts.num_swaps
    assert num_swaps == sequence.group.num_swaps == (status is SWAPPED)
    driver.run(max_steps=12)


def test_the_cost_of_forks_counts_their_prompt_once():
    driver, _ = started(4, num_blocks=60, num_host_blocks=60)
    leader = driver.add(40, max_tokens=9, n=4)
    driver.steps(2)
    learn(driver, 1e-3)
    driver.scheduler.tables.swap.block_s = 2.5e-3  # 14 blocks out and in take 70 ms, 44 tokens 44 ms, 164 tokens 164 ms
    driver.scheduler.preemption.preempt(leader.group)
    assert leader.status is PREEMPTED
    driver.run(max_steps=30)


def test_a_victim_is_swapped_before_the_cost_is_known():
    driver, (sequence,) = started(8, num_blocks=16, num_host_blocks=16)
    driver.scheduler.preemption.preempt(sequence.group)
    assert sequence.status is SWAPPED


@pytest.mark.parametrize("num_host_blocks, status", [(0, PREEMPTED), (1, PREEMPTED), (2, SWAPPED)])
def test_a_victim_that_does_not_fit_host_memory_is_recomputed(num_host_blocks, status):
    driver, (sequence,) = started(8, num_blocks=16, num_host_blocks=num_host_blocks)
    driver.scheduler.preemption.preempt(sequence.group)
    assert sequence.status is status
    driver.run(max_steps=12)


def test_folded_groups_and_groups_without_computed_tokens_are_not_swapped():
    driver = Driver(num_host_blocks=16, max_num_batched_tokens=8)
    folded = driver.add(12, n=2)
    driver.step()
    driver.scheduler.preemption.preempt(folded.group)
    assert folded.status is PREEMPTED
    driver.scheduler.abort("r1")
    fresh = driver.add(4)
    driver.launch()
    driver.scheduler.preemption.preempt(fresh.group)
    assert fresh.status is PREEMPTED
    driver.finish_step()
    driver.run(max_steps=10)


def test_beams_are_not_swapped_while_their_step_is_in_flight():
    driver = Driver(num_host_blocks=40)
    leader = driver.add(6, max_tokens=9, use_beam_search=True, beam_width=3)
    driver.steps(3)
    driver.launch()
    driver.scheduler.preemption.preempt(leader.group)
    assert leader.status is PREEMPTED
    driver.finish_step()
    driver.run_until(lambda: leader.status is RUNNING and len(leader.group.open[0].output_token_ids) > 4)
    driver.scheduler.preemption.preempt(leader.group)
    assert leader.status is SWAPPED
    driver.run(max_steps=30)
