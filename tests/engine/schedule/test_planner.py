"""The planner: what goes into a step, and who may run at all."""

import pytest

from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING
from tests.engine.schedule.fake_groups import new_tokens
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.fake_tokens import reference


def test_a_whole_prompt_and_then_one_token_at_a_time():
    driver = Driver()
    sequence = driver.add(num_prompt=6, max_tokens=3)
    assert [new_tokens(driver.step()) for _ in range(3)] == [{1: 6}, {1: 1}, {1: 1}]
    assert sequence.status is FINISHED
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 3)
    assert driver.step() is None


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


def test_nothing_is_sent_for_unchanged_sequences():
    driver = Driver(block_size=16)
    driver.add(max_tokens=8)
    driver.step()
    plan = driver.step()
    assert (plan.row_starts, plan.table_writes, plan.released_rows) == ((), (), ())


def test_the_last_token_takes_no_block():
    driver = Driver(num_blocks=2)
    driver.add(num_prompt=4, max_tokens=5)
    driver.run(max_steps=5)


# --- Restricted: a fault is being isolated --------------------------------------------------------------------------


def test_only_allowed_requests_run_and_start():
    driver = Driver()
    first, second = driver.add(max_tokens=9), driver.add(max_tokens=9)
    driver.step()
    third, fourth = driver.add(max_tokens=9), driver.add(max_tokens=9)
    driver.scheduler.restrict({"r2", "r4"})
    assert new_tokens(driver.step()) == {second.id: 1, fourth.id: 4}
    assert (first.status, third.status) == (RUNNING, WAITING)
    driver.scheduler.restrict(None)
    assert new_tokens(driver.step()) == {first.id: 1, second.id: 1, fourth.id: 1, third.id: 4}
    driver.run(max_steps=20)


def test_a_resumed_group_runs_only_if_it_is_allowed():
    driver = Driver()
    sequence = driver.add(max_tokens=9)
    driver.step()
    driver.scheduler.pause("r1")
    driver.scheduler.restrict({"r2"})
    driver.scheduler.resume("r1")
    assert driver.step() is None and sequence.status is PAUSED
    driver.scheduler.restrict({"r1"})
    assert new_tokens(driver.step()) == {1: 1}


@pytest.mark.parametrize("others", ["running", "paused", "resuming"])
@pytest.mark.parametrize("is_growing", [True, False])
def test_the_blocks_of_those_that_may_not_run_go_first(others, is_growing):
    """Whatever their age: also those of the first, which would be no victim otherwise."""
    driver = Driver(num_blocks=9)
    first, second = driver.add(8, max_tokens=9), driver.add(8, max_tokens=9)
    driver.step()
    if others != "running":
        driver.scheduler.pause("r1")
        driver.scheduler.pause("r2")
    if is_growing:
        allowed = driver.add(16, max_tokens=20)
        driver.step()
    driver.scheduler.restrict({"r3"})
    if others == "resuming":
        driver.scheduler.resume("r1")
        driver.scheduler.resume("r2")
    if not is_growing:
        allowed = driver.add(25, max_tokens=12)
    driver.run_until(lambda: allowed.is_finished)
    assert {first.status, second.status} == {PREEMPTED}
    assert allowed.group.num_preemptions == 0
    driver.scheduler.restrict(None)
    for request_id in ("r1", "r2"):
        driver.scheduler.resume(request_id)
    driver.run(max_steps=30)


@pytest.mark.parametrize("max_num_seqs, num_host_blocks", [(1, 0), (1, 30), (8, 0)])
def test_whoever_is_allowed_runs_though_others_have_the_seats_or_the_blocks(max_num_seqs, num_host_blocks):
    limits = {"max_num_seqs": max_num_seqs, "num_host_blocks": num_host_blocks}
    driver = Driver(num_blocks=200, max_num_batched_tokens=800, **limits)
    first, second = driver.add(3, max_tokens=2), driver.add(4 * 199, max_tokens=2)
    driver.step()
    driver.scheduler.restrict({"r2"})
    driver.run_until(lambda: second.is_finished)
    assert first.status is (SWAPPED if num_host_blocks else PREEMPTED)
    driver.scheduler.restrict(None)
    driver.run(max_steps=10)


def test_a_shrunken_budget_takes_the_seats_of_those_that_may_not_run():
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16)
    sequences = [driver.add(max_tokens=9) for _ in range(12)]
    driver.steps(4)
    driver.scheduler.restrict({sequence.request.id for sequence in sequences[8:]})
    driver.scheduler.budget.halve()
    plan = driver.step()
    assert list(new_tokens(plan)) == [sequence.id for sequence in sequences[8:]]
    assert not any(sequence.group.num_preemptions for sequence in sequences[8:])
    driver.scheduler.restrict(None)
    driver.run(max_steps=60)
