"""The scheduler: what goes into a step, who starts, and how requests come and go."""

import pytest

from app.engine.schedule.plan import Sample, StepResult
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING
from app.errors import ConfigurationError, ContextLengthExceeded, InvalidValue, KVCapacityExceeded
from tests.engine.schedule.fake_model import Driver, make_limits, make_request, reference


def new_tokens(plan) -> dict[int, int]:
    """{sequence id: number of its new tokens}, in the order of the plan."""
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in plan.chunks}


# --- Limits and the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "run_ahead"])
def test_a_limit_that_allows_nothing_is_refused_by_name(name):
    with pytest.raises(ConfigurationError, match=f"{name} is -1; it must be at least") as error:
        make_limits(**{name: -1})
    assert error.value.param == name


@pytest.mark.parametrize(
    "num_prompt, max_tokens, error",
    [(0, 4, InvalidValue), (30, 11, ContextLengthExceeded), (30, 4, KVCapacityExceeded), (33, 1, KVCapacityExceeded)],
)
def test_what_could_never_run_is_refused_and_changes_nothing(num_prompt, max_tokens, error):
    scheduler = Scheduler(make_limits(num_blocks=8, max_model_len=40))
    with pytest.raises(error):
        scheduler.add(make_request("a", num_prompt, max_tokens))
    assert not scheduler.has_work
    scheduler.check_integrity()


@pytest.mark.parametrize("num_prompt, max_tokens", [(32, 1), (30, 3), (1, 32)])
def test_what_just_fits_alone_is_taken_and_finishes(num_prompt, max_tokens):
    driver = Driver(num_blocks=8, max_model_len=33)
    driver.add(num_prompt, max_tokens)
    driver.run(max_steps=40)


def test_an_id_can_be_used_again_only_when_its_request_has_finished():
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("a"))
    with pytest.raises(ValueError, match="a is already there"):
        scheduler.add(make_request("a"))
    scheduler.abort("a")
    scheduler.add(make_request("a"))
    scheduler.check_integrity()


# --- What goes into a step --------------------------------------------------------------------------------------


def test_without_requests_there_is_no_step():
    assert Scheduler(make_limits()).schedule(0.0) is None


def test_a_whole_prompt_and_then_one_token_at_a_time():
    driver = Driver()
    sequence = driver.add(num_prompt=6, max_tokens=3)
    assert [new_tokens(driver.step()) for _ in range(3)] == [{1: 6}, {1: 1}, {1: 1}]
    assert sequence.status is FINISHED
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 3)
    assert driver.step() is None


def test_the_first_step_of_a_sequence_notes_its_time_and_a_second_start_does_not():
    scheduler = Scheduler(make_limits())
    sequence = scheduler.add(make_request("a"))
    assert sequence.first_scheduled_time is None
    plan = scheduler.schedule(now=7.5)
    scheduler.preempt(sequence)
    scheduler.update(StepResult(plan.step, (Sample(sequence.id, 5),)), now=8.0)
    scheduler.schedule(now=9.0)
    assert sequence.first_scheduled_time == 7.5


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_is_sampled():
    driver = Driver(max_num_batched_tokens=10)
    driver.add(num_prompt=23)
    plans = [driver.step() for _ in range(3)]
    assert [new_tokens(plan) for plan in plans] == [{1: 10}, {1: 10}, {1: 3}]
    assert [plan.logit_rows for plan in plans] == [(), (), (2,)]


def test_a_long_prompt_never_delays_who_generates():
    driver = Driver(max_num_batched_tokens=8)
    old = driver.add(num_prompt=4, max_tokens=10)
    driver.step()
    young = driver.add(num_prompt=60)
    for _ in range(8):
        assert new_tokens(driver.step()) == {old.id: 1, young.id: 7}


def test_prefills_share_what_is_left_in_the_order_of_arrival():
    driver = Driver(max_num_batched_tokens=16)
    for _ in range(3):
        driver.add(num_prompt=12)
    assert new_tokens(driver.step()) == {1: 12, 2: 4}
    assert new_tokens(driver.step()) == {1: 1, 2: 8, 3: 7}
    assert new_tokens(driver.step()) == {1: 1, 2: 1, 3: 5}


def test_no_more_sequences_run_than_a_step_has_tokens():
    driver = Driver(max_num_seqs=8, max_num_batched_tokens=3)
    for _ in range(6):
        driver.add(num_prompt=1, max_tokens=5)
    assert new_tokens(driver.step()) == {1: 1, 2: 1, 3: 1}
    for request_id in ("r1", "r2", "r3"):
        driver.scheduler.pause(request_id)
    assert new_tokens(driver.step()) == {4: 1, 5: 1, 6: 1}
    for request_id in ("r1", "r2", "r3"):
        driver.scheduler.resume(request_id)
    assert new_tokens(driver.step()) == {4: 1, 5: 1, 6: 1}
    driver.run(max_steps=20)


def test_running_sequences_are_at_most_max_num_seqs():
    driver = Driver(max_num_seqs=2)
    for _ in range(3):
        driver.add(max_tokens=3)
    assert new_tokens(driver.step()) == {1: 4, 2: 4}
    assert (driver.scheduler.num_running, driver.scheduler.num_waiting) == (2, 1)
    driver.run(max_steps=7)


def test_sequences_keep_their_rows_and_rows_are_used_again():
    driver = Driver(max_num_seqs=2)
    first, second = driver.add(max_tokens=2), driver.add(max_tokens=4)
    driver.steps(2)
    assert (first.row, second.row) == (None, 2)
    driver.add()
    plan = driver.step()
    assert plan.released_rows == (1,) and [start.row for start in plan.row_starts] == [1]


def test_nothing_is_sent_for_unchanged_sequences():
    driver = Driver(block_size=16)
    driver.add(max_tokens=8)
    driver.step()
    plan = driver.step()
    assert (plan.row_starts, plan.block_appends, plan.released_rows) == ((), (), ())


# --- Who starts ---------------------------------------------------------------------------------------------------


def test_a_request_starts_when_its_whole_prompt_and_the_watermark_fit():
    driver = Driver(num_blocks=8)
    driver.add(num_prompt=12, max_tokens=9)  # 3 blocks; it grows after the first step
    driver.add(num_prompt=16, max_tokens=2)
    assert new_tokens(driver.step()) == {1: 12, 2: 16}  # 3 + 4 + a watermark of 1 = 8
    tight = Driver(num_blocks=7)
    tight.add(num_prompt=12, max_tokens=9)
    tight.add(num_prompt=16, max_tokens=2)
    assert new_tokens(tight.step()) == {1: 12}


def test_alone_a_request_may_fill_the_pool():
    driver = Driver(num_blocks=4)
    driver.add(num_prompt=16, max_tokens=1)
    assert new_tokens(driver.step()) == {1: 16}


def test_a_prompt_that_does_not_fit_yet_is_not_overtaken():
    driver = Driver(num_blocks=8)
    driver.add(num_prompt=16, max_tokens=8)
    driver.add(num_prompt=28, max_tokens=2)
    driver.add(num_prompt=1, max_tokens=1)
    driver.step()
    assert driver.scheduler.num_waiting == 2
    driver.run(max_steps=20)
    assert [sequence.id for sequence in driver.finished] == [1, 2, 3]


def test_blocks_of_a_prompt_are_its_own_from_the_start():
    driver = Driver(num_blocks=16, max_num_batched_tokens=4)
    driver.add(num_prompt=32)
    driver.step()
    assert driver.scheduler.num_free_blocks == 8


def test_the_last_token_takes_no_block():
    driver = Driver(num_blocks=2)
    driver.add(num_prompt=4, max_tokens=5)
    driver.run(max_steps=5)


# --- Pause and resume -----------------------------------------------------------------------------------------------


def test_a_paused_sequence_keeps_its_blocks_and_gives_up_its_seat_and_row():
    driver = Driver(max_num_seqs=1)
    first, second = driver.add(), driver.add()
    driver.step()
    driver.scheduler.pause("r1")
    blocks = list(first.block_table)
    plan = driver.step()
    assert first.status is PAUSED and first.row is None and first.block_table == blocks
    assert new_tokens(plan) == {second.id: 4} and plan.released_rows == (1,)


def test_a_resumed_sequence_goes_on_where_it_was_with_a_new_row():
    driver = Driver()
    sequence = driver.add(num_prompt=6, max_tokens=5)
    driver.steps(2)
    driver.scheduler.pause("r1")
    assert driver.step() is None
    driver.scheduler.resume("r1")
    plan = driver.step()
    assert new_tokens(plan) == {1: 1} and plan.chunks[0].start == 7
    assert plan.row_starts[0].output_token_ids == tuple(reference(sequence.prompt_token_ids, 2))
    driver.run(max_steps=3)


def test_a_pause_in_the_middle_of_a_prompt_keeps_what_is_computed():
    driver = Driver(max_num_batched_tokens=5)
    driver.add(num_prompt=12)
    driver.step()
    driver.scheduler.pause("r1")
    driver.scheduler.resume("r1")
    assert driver.step().chunks[0].start == 5
    driver.run(max_steps=10)


def test_a_pause_while_a_step_is_in_flight_loses_no_token():
    driver = Driver()
    sequence = driver.add()
    driver.launch()
    driver.scheduler.pause("r1")
    assert driver.settle() == [sequence] and sequence.status is PAUSED
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 1)


def test_a_waiting_request_that_is_paused_does_not_start_and_others_pass():
    driver = Driver(max_num_seqs=1)
    first, second = driver.add(), driver.add()
    driver.scheduler.pause("r1")
    assert first.status is WAITING and not first.ready
    assert new_tokens(driver.step()) == {second.id: 4}
    driver.scheduler.resume("r1")
    driver.run(max_steps=10)


def test_pause_and_resume_are_idempotent_and_ignore_unknown_ids():
    driver = Driver()
    driver.add()
    driver.step()
    for call in (driver.scheduler.pause, driver.scheduler.resume):
        call("nobody")
        call("r1")
        call("r1")
        driver.scheduler.check_integrity()
    assert new_tokens(driver.step()) == {1: 1}


def test_resumed_sequences_take_free_seats_before_waiting_ones():
    driver = Driver(max_num_seqs=1)
    driver.add(max_tokens=9)
    driver.step()
    driver.scheduler.pause("r1")
    driver.add(max_tokens=2)
    driver.add()
    driver.step()
    driver.scheduler.resume("r1")
    driver.step()  # the seat is r2's, until now
    assert new_tokens(driver.step()) == {1: 1}


def test_while_everything_is_paused_there_is_work_but_none_ready():
    driver = Driver()
    driver.add()
    assert driver.scheduler.has_ready_work
    driver.step()
    driver.scheduler.pause("r1")
    assert driver.scheduler.has_work and not driver.scheduler.has_ready_work
    assert (driver.scheduler.num_running, driver.scheduler.num_paused, driver.scheduler.num_waiting) == (0, 1, 0)
    assert driver.scheduler.schedule(0.0) is None


# --- Abort, finish, abandon -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [WAITING, RUNNING, PAUSED, PREEMPTED])
def test_abort_frees_everything_in_every_state_and_again_does_nothing(status):
    driver = Driver()
    sequence = driver.add(max_tokens=9)
    if status is not WAITING:
        driver.step()
    if status is PAUSED:
        driver.scheduler.pause("r1")
    if status is PREEMPTED:
        driver.scheduler.preempt(sequence)
    assert sequence.status is status
    assert driver.scheduler.abort("r1") is sequence
    assert sequence.status is FINISHED and driver.scheduler.num_free_blocks == 64
    assert driver.scheduler.abort("r1") is None
    driver.scheduler.finish(sequence)
    assert driver.step() is None and not driver.scheduler.has_work


def test_blocks_of_an_aborted_sequence_are_fenced_until_the_step_in_flight_is_done():
    driver = Driver(num_blocks=2)
    driver.add(num_prompt=8, max_tokens=1)
    driver.launch()
    driver.scheduler.abort("r1")
    assert driver.scheduler.num_free_blocks == 0
    driver.scheduler.check_integrity()
    assert driver.settle() == []  # its token is dropped
    assert driver.scheduler.num_free_blocks == 2


def test_an_id_used_again_while_its_old_step_is_in_flight_gets_no_old_token():
    driver = Driver()
    driver.add()
    driver.launch()
    driver.scheduler.abort("r1")
    again = driver.scheduler.add(make_request("r1"))
    assert driver.settle() == [] and again.output_token_ids == []


def test_an_abandoned_step_finishes_its_sequences_alone():
    driver = Driver(max_num_seqs=2)
    failed, aborted, other = driver.add(), driver.add(), driver.add()
    plan = driver.scheduler.schedule(0.0)
    driver.scheduler.abort("r2")
    assert driver.scheduler.abandon(plan) == [failed]
    assert (failed.status, aborted.status, other.status) == (FINISHED, FINISHED, WAITING)
    assert driver.scheduler.num_free_blocks == 64
    driver.scheduler.check_integrity()
    next_plan = driver.scheduler.schedule(0.0)
    assert new_tokens(next_plan) == {other.id: 4} and next_plan.released_rows == (2, 1)


def test_a_second_step_needs_the_first_one_to_be_done():
    driver = Driver()
    driver.add()
    driver.launch()
    with pytest.raises(ValueError, match="1 steps are in flight, run_ahead is 0"):
        driver.launch()
    driver.settle()


def test_steps_are_settled_in_order_and_once():
    scheduler = Scheduler(make_limits())
    scheduler.add(make_request("a"))
    with pytest.raises(ValueError, match="step 1 is not the oldest in flight"):
        scheduler.update(StepResult(1, ()), 0.0)
    plan = scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="0 samples, 1 logit rows"):
        scheduler.update(StepResult(plan.step, ()), 0.0)
    scheduler.abandon(plan)
    with pytest.raises(ValueError, match="not the oldest"):
        scheduler.abandon(plan)
    scheduler.check_integrity()
