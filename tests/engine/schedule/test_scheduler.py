"""The scheduler: adding and ending requests, updating and abandoning steps, without leaks."""

from dataclasses import replace
from random import Random

import pytest

from app.contract.errors import DeadlineExceeded, KVCapacityExceeded, QueueTimeout
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, UNKNOWN_TOKEN_ID, WAITING
from app.engine.schedule.step_plan import Sample, StepResult
from tests.engine.schedule.fake_groups import add_prompt, make_prompt_request
from tests.engine.schedule.fake_model import Driver, make_limits, make_request
from tests.engine.schedule.fake_tokens import reference
from tests.engine.schedule.open_requests import num_open


def new_tokens(plan) -> dict[int, int]:
    """{sequence id: number of its new tokens}, in the order of the plan."""
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in plan.chunks}


# --- Adding requests ----------------------------------------------------------------------------------------------


def test_without_requests_there_is_no_step():
    assert Scheduler(make_limits()).schedule(0.0) is None


def test_an_id_can_be_reused_only_after_its_request_has_ended():
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("a"))
    with pytest.raises(ValueError, match="a is already there"):
        scheduler.add(make_request("a"))
    assert scheduler.is_open("a")
    scheduler.abort("a")
    assert not scheduler.is_open("a")
    scheduler.add(make_request("a"))
    scheduler.check_integrity()


def test_the_time_of_the_first_step_of_a_group_is_kept():
    scheduler = Scheduler(make_limits())
    group = scheduler.add(make_request("a"))
    assert group.first_scheduled_time is None
    plan = scheduler.schedule(now=7.5)
    scheduler.preemption.preempt(group)
    scheduler.update(StepResult(plan.step, (Sample(group.open[0].id, 5),)), now=8.0)
    scheduler.schedule(now=9.0)
    assert group.first_scheduled_time == 7.5


# --- Deadlines ----------------------------------------------------------------------------------------------------


def test_an_expired_start_deadline_is_reported_once():
    driver = Driver(max_num_seqs=1)
    driver.add(max_tokens=9)
    driver.step()
    driver.scheduler.add(replace(make_request("late", arrival_time=2.0), start_deadline=5.0))
    assert driver.scheduler.deadlines.next_time == 5.0 and driver.scheduler.deadlines.expired(4.9) == []
    ((request_id, error),) = driver.scheduler.deadlines.expired(5.0)
    assert request_id == "late" and isinstance(error, QueueTimeout)
    assert driver.scheduler.deadlines.expired(6.0) == [] and driver.scheduler.deadlines.next_time is None


def test_a_start_removes_the_start_deadline_only():
    driver = Driver()
    driver.scheduler.add(replace(make_request("a", max_tokens=9), start_deadline=5.0, deadline=8.0))
    driver.step()
    assert driver.scheduler.deadlines.next_time == 8.0 and driver.scheduler.deadlines.expired(7.0) == []
    ((request_id, error),) = driver.scheduler.deadlines.expired(8.5)
    assert request_id == "a" and isinstance(error, DeadlineExceeded)


def test_a_preempted_request_does_not_miss_its_start_deadline():
    driver = Driver()
    group = driver.scheduler.add(replace(make_request("a", max_tokens=9), start_deadline=5.0))
    driver.step()
    driver.scheduler.preemption.preempt(group)
    assert driver.scheduler.deadlines.expired(9.0) == []


def test_a_request_that_ends_in_time_is_never_reported():
    driver = Driver()
    driver.scheduler.add(replace(make_request("a", max_tokens=2), deadline=5.0))
    driver.run(max_steps=3)
    assert driver.scheduler.deadlines.next_time is None and driver.scheduler.deadlines.expired(9.0) == []


# --- Pinned prefixes ----------------------------------------------------------------------------------------------


def test_pinned_blocks_are_never_evicted_and_count_once():
    driver = Driver(num_blocks=8)
    add_prompt(driver, "a", range(13), max_tokens=1)
    driver.run(max_steps=3)
    assert [driver.scheduler.pin(make_prompt_request("pin", range(end))) for end in (13, 9)] == [12, 8]
    assert driver.scheduler.capacity == 5
    for number in range(3):
        add_prompt(driver, f"other {number}", range(100 * number + 100, 100 * number + 120), max_tokens=1)
        driver.run(max_steps=3)
    again = add_prompt(driver, "a again", range(14), max_tokens=1)
    driver.step()
    assert again.group.num_cached_tokens == 12
    driver.scheduler.check_integrity()


def test_only_blocks_of_the_pinned_tenant_are_pinned():
    driver = Driver()
    add_prompt(driver, "a", range(9), max_tokens=1, tenant="x")
    driver.run(max_steps=3)
    assert driver.scheduler.pin(make_prompt_request("pin", range(9), tenant="y")) == 0
    assert driver.scheduler.pin(make_prompt_request("pin", range(9), tenant="x")) == 8


# --- Pause and resume -----------------------------------------------------------------------------------------------


def test_a_paused_group_keeps_its_blocks_and_gives_up_its_seat_and_row():
    driver = Driver(max_num_seqs=1)
    first, second = driver.add(), driver.add()
    driver.step()
    driver.scheduler.pause("r1")
    blocks = list(first.block_table)
    plan = driver.step()
    assert first.status is PAUSED and first.row is None and first.block_table == blocks
    assert new_tokens(plan) == {second.id: 4} and plan.released_rows == (1,)


@pytest.mark.parametrize("params", [{}, {"n": 3}, {"use_beam_search": True, "beam_width": 3}])
def test_a_resumed_group_continues_with_new_rows(params):
    driver = Driver()
    leader = driver.add(num_prompt=6, max_tokens=5, **params)
    driver.steps(2)
    driver.scheduler.pause("r1")
    assert driver.step() is None
    driver.scheduler.resume("r1")
    plan = driver.step()
    num_sequences = leader.request.params.num_sequences
    assert [chunk.start for chunk in plan.chunks] == [7] * num_sequences
    assert [len(start.output_token_ids) for start in plan.row_starts] == [2] * num_sequences
    driver.run(max_steps=5)


def test_a_pause_during_a_prompt_keeps_computed_tokens():
    driver = Driver(max_num_batched_tokens=5)
    driver.add(num_prompt=12, n=2)
    driver.step()
    driver.scheduler.pause("r1")
    driver.scheduler.resume("r1")
    assert driver.step().chunks.starts[0] == 5
    driver.run(max_steps=10)


def test_a_pause_while_a_step_is_in_flight_loses_no_token():
    driver = Driver()
    sequence = driver.add()
    driver.launch()
    driver.scheduler.pause("r1")
    assert driver.finish_step() == [sequence] and sequence.status is PAUSED
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 1)


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_a_search_continues_after_a_pause_with_a_step_in_flight(run_ahead):
    driver = Driver(run_ahead=run_ahead)
    leader = driver.add(max_tokens=6, use_beam_search=True, beam_width=3)
    driver.run_until(lambda: len(leader.output_token_ids) == 2)
    while driver.launch() is None:
        driver.finish_step()
    driver.scheduler.pause("r1")
    while driver.in_flight:
        driver.finish_step()
    assert leader.status is PAUSED and len(leader.group.open[0].output_token_ids) == 3
    driver.scheduler.resume("r1")
    driver.run(max_steps=20)


def test_a_paused_waiting_request_does_not_start_and_is_overtaken():
    driver = Driver(max_num_seqs=1)
    first, second = driver.add(), driver.add()
    driver.scheduler.pause("r1")
    assert first.status is WAITING and not first.group.ready
    assert new_tokens(driver.step()) == {second.id: 4}
    driver.scheduler.resume("r1")
    driver.run(max_steps=10)


def test_pause_and_resume_are_idempotent_and_ignore_unknown_ids():
    driver = Driver()
    driver.add()
    driver.step()
    for call in (driver.scheduler.pause, driver.scheduler.resume):
        call("unknown")
        call("r1")
        call("r1")
        driver.scheduler.check_integrity()
    assert new_tokens(driver.step()) == {1: 1}


def test_paused_groups_are_work_but_not_ready_work():
    driver = Driver()
    driver.add()
    assert driver.scheduler.queues.has_ready
    driver.step()
    driver.scheduler.pause("r1")
    assert num_open(driver.scheduler) and not driver.scheduler.queues.has_ready
    assert (len(driver.scheduler.queues.running), driver.scheduler.num_paused, driver.scheduler.queues.num_waiting) == (
        0,
        1,
        0,
    )
    assert driver.scheduler.schedule(0.0) is None


# --- Abort and finish -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"n": 3}, {"use_beam_search": True, "beam_width": 3}])
@pytest.mark.parametrize("status", [WAITING, RUNNING, PAUSED, PREEMPTED, SWAPPED])
def test_abort_frees_all_blocks_in_every_state_and_is_idempotent(status, params):
    driver = Driver(num_host_blocks=9 if status is SWAPPED else 0)
    leader = driver.add(max_tokens=9, **params)
    if status is not WAITING:
        driver.steps(2)
    if status is PAUSED:
        driver.scheduler.pause("r1")
    if status in (PREEMPTED, SWAPPED):
        driver.scheduler.preemption.preempt(leader.group)
    assert leader.status is status
    assert driver.scheduler.abort("r1") is leader.group
    assert leader.group.status is FINISHED and driver.scheduler.tables.pool.num_free == 64
    assert all(one.is_finished and one.block_table == one.host_table == [] for one in leader.group.sequences)
    assert driver.scheduler.abort("r1") is None
    driver.scheduler.finish(leader)
    driver.scheduler.finish_group(leader.group)
    driver.step()
    assert driver.scheduler.tables.swap.pool.num_free == driver.scheduler.limits.num_host_blocks


def test_blocks_of_an_aborted_request_are_fenced_until_its_step_is_done():
    driver = Driver(num_blocks=2)
    driver.add(num_prompt=8, max_tokens=1)
    driver.launch()
    driver.scheduler.abort("r1")
    assert driver.scheduler.tables.pool.num_free == 0
    driver.scheduler.check_integrity()
    assert driver.finish_step() == []  # its token is dropped
    assert driver.scheduler.tables.pool.num_free == 2


def test_a_reused_id_gets_no_token_of_the_old_request():
    driver = Driver()
    driver.add()
    driver.launch()
    driver.scheduler.abort("r1")
    again = driver.scheduler.add(make_request("r1"))
    assert driver.finish_step() == [] and again.open[0].output_token_ids == []


@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_aborts_at_random_times_leave_nothing_behind(seed):
    """With forks, beams, pauses and swaps; 2,000 aborts in all seeds."""
    random = Random(seed)
    driver = Driver(num_blocks=24, num_host_blocks=random.choice((0, 16)), run_ahead=random.choice((0, 1, 2)))
    live: list[str] = []
    num_aborted = 0
    while num_aborted < 100:
        if len(live) < 6:
            params = random.choice(({}, {"n": 3}, {"use_beam_search": True, "beam_width": 3}))
            live.append(driver.add(random.randint(1, 12), random.randint(1, 20), **params).request.id)
        request_id = random.choice(live)
        random.choice((driver.scheduler.pause, driver.scheduler.resume, driver.scheduler.resume))(request_id)
        if random.random() < 0.3:
            live.remove(request_id)
            num_aborted += driver.scheduler.abort(request_id) is not None
        driver.launch() if len(driver.in_flight) <= driver.scheduler.limits.run_ahead else driver.finish_step()
        driver.scheduler.check_integrity()
    for request_id in live:
        driver.scheduler.abort(request_id)
    while driver.in_flight:
        driver.finish_step()
    driver.scheduler.check_integrity()
    pool, swap = driver.scheduler.tables.pool, driver.scheduler.tables.swap
    assert pool.num_free == 24 and not any(pool.num_references(block_id) for block_id in range(1, 25))
    assert swap.pool.num_free == swap.pool.num_blocks
    assert driver.scheduler.queues.num_seats == 0 and driver.scheduler.queues.rows.num_free == 8


# --- Steps ------------------------------------------------------------------------------------------------------


def test_without_run_ahead_one_step_is_in_flight():
    driver = Driver()
    driver.add()
    driver.launch()
    with pytest.raises(ValueError, match="1 steps are in flight, run_ahead is 0"):
        driver.launch()
    driver.finish_step()


def test_steps_are_updated_or_abandoned_in_order_and_once():
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("a"))
    with pytest.raises(ValueError, match="step 1 is not the oldest in flight"):
        scheduler.update(StepResult(1, ()), 0.0)
    plan = scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="0 samples, 1 logit rows"):
        scheduler.update(StepResult(plan.step, ()), 0.0)
    assert scheduler.is_in_flight(plan)
    scheduler.abandon(plan)
    assert not scheduler.is_in_flight(plan)
    with pytest.raises(ValueError, match="not the oldest"):
        scheduler.abandon(plan)
    scheduler.check_integrity()


def test_steps_ahead_are_planned_with_unknown_tokens():
    driver = Driver(run_ahead=2)
    sequence = driver.add(num_prompt=4, max_tokens=6)
    plans = [driver.launch() for _ in range(3)]
    assert [plan.chunks.token_ids for plan in plans[1:]] == [(UNKNOWN_TOKEN_ID,)] * 2
    assert [plan.chunks.starts[0] for plan in plans] == [0, 4, 5]
    driver.finish_step()
    driver.run(max_steps=10)
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 6)


def test_steps_ahead_never_compute_beyond_the_last_token():
    driver = Driver(run_ahead=3)
    driver.add(num_prompt=4, max_tokens=2)
    assert driver.launch() and driver.launch()
    assert driver.launch() is None


def test_a_sequence_gets_a_new_row_only_when_all_its_tokens_are_known():
    driver = Driver(run_ahead=2)
    driver.add(num_prompt=4, max_tokens=8)
    driver.launch()
    driver.launch()
    driver.scheduler.pause("r1")
    driver.scheduler.resume("r1")
    assert driver.launch() is None
    driver.finish_step()
    assert driver.launch() is None
    driver.finish_step()
    (start,) = driver.launch().row_starts
    assert len(start.output_token_ids) == 2
    driver.run(max_steps=10)


# --- A pool of exactly one longest request ------------------------------------------------------------------------


@pytest.mark.parametrize("num_host_blocks", [0, 24])
@pytest.mark.parametrize("run_ahead", [0, 2])
@pytest.mark.parametrize("most_sequences", [1, 2])
def test_a_pool_of_one_longest_request_serves_sixty_four_of_them(run_ahead, num_host_blocks, most_sequences):
    """The driver compares every output with the reference."""
    driver = Driver(
        num_blocks=8, max_num_seqs=16, max_model_len=33, run_ahead=run_ahead, num_host_blocks=num_host_blocks
    )
    for index in range(64):
        num_prompt = 1 + index % 20
        if most_sequences == 1 or index % 3:
            driver.add(num_prompt, 33 - num_prompt)
        else:
            driver.add(num_prompt, 1 + (8 + num_prompt // 4) // 2 * 4 - num_prompt, n=2)
    with pytest.raises(KVCapacityExceeded):
        Driver(num_blocks=8, max_model_len=34).add(33, 1)
    driver.run(max_steps=4_000)
    assert len(driver.finished) == (64 if most_sequences == 1 else 64 + 22)
    assert driver.scheduler.tables.pool.num_free == 8


def test_recomputed_tokens_are_bounded_under_many_preemptions():
    driver = Driver(num_blocks=8, max_num_seqs=32, max_num_batched_tokens=32)
    sequences = [driver.add(num_prompt=2, max_tokens=28) for _ in range(32)]
    num_steps = driver.run(max_steps=32 * 28)
    assert num_steps < 32 * 28 * 0.8
    assert max(sequence.group.num_preemptions for sequence in sequences) <= 6
