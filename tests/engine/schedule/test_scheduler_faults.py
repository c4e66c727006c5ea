"""Failed steps: only the tokens that they computed are lost, and their groups restart."""

import pytest

from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, SWAPPED, WAITING
from tests.engine.schedule.fake_groups import add_prompt, make_swapped
from tests.engine.schedule.fake_model import Driver


def test_the_groups_of_a_failed_step_restart_and_only_they_are_returned():
    driver = Driver(max_num_seqs=2)
    failed, aborted, other = driver.add(), driver.add(), driver.add()
    plan = driver.scheduler.schedule(0.0)
    driver.scheduler.abort("r2")
    assert driver.scheduler.abandon(plan) == [failed.group]
    assert (failed.status, aborted.status, other.status) == (PREEMPTED, FINISHED, WAITING)
    assert driver.scheduler.tables.pool.num_free == 64 and failed.group.num_preemptions == 0
    driver.scheduler.check_integrity()
    next_plan = driver.scheduler.schedule(0.0)
    assert [chunk.sequence_id for chunk in next_plan.chunks] == [failed.id, other.id] and set(
        next_plan.released_rows
    ) == {1, 2}


@pytest.mark.parametrize("params", [{}, {"n": 3}, {"use_beam_search": True, "beam_width": 3}])
@pytest.mark.parametrize("num_host_blocks", [0, 40])
@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_no_sequence_loses_a_token_in_failed_steps(params, num_host_blocks, run_ahead, num_steps):
    """All steps in flight fail with the oldest, and their samples are sampled again."""
    driver = Driver(num_blocks=20, num_host_blocks=num_host_blocks, run_ahead=run_ahead)
    leaders = [driver.add(num_prompt, max_tokens=18, **params) for num_prompt in (3, 9, 6)]
    for _ in range(3):
        driver.steps(num_steps)
        while len(driver.in_flight) <= run_ahead and driver.launch():
            pass
        before = [[list(one.output_token_ids) for one in leader.group.open] for leader in leaders]
        driver.abandon()
        driver.scheduler.check_integrity()
        assert before == [[one.output_token_ids for one in leader.group.open] for leader in leaders]
        assert not driver.scheduler.queues.running and driver.scheduler.tables.pool.num_fenced == 0
    driver.run(max_steps=200)
    assert all(leader.group.status is FINISHED for leader in leaders)
    assert driver.scheduler.tables.pool.num_free == 20


def test_only_blocks_computed_before_a_failed_step_are_cached():
    driver = Driver(max_num_batched_tokens=8)
    sequence = add_prompt(driver, "a", range(20))
    driver.step()
    driver.launch()
    driver.abandon()
    assert len(driver.scheduler.tables.cache) == 2
    plan = driver.step()
    assert (plan.chunks.starts[0], plan.num_tokens) == (8, 8)
    assert sequence.group.num_lost_tokens == 0
    driver.run(max_steps=10)


def test_a_group_paused_in_a_failed_step_restarts_after_resume():
    driver = Driver()
    sequence = driver.add()
    driver.launch()
    driver.scheduler.pause("r1")
    assert driver.abandon() == [sequence.group]
    assert sequence.status is PREEMPTED and not sequence.group.ready and driver.step() is None
    driver.scheduler.resume("r1")
    driver.run(max_steps=6)


def test_running_groups_outside_of_the_failed_step_restart_too():
    driver = Driver()
    idle, failed = driver.add(), driver.add()
    driver.step()
    driver.scheduler.restrict({"r2"})
    driver.launch()
    assert driver.abandon() == [failed.group]
    assert (idle.status, failed.status) == (PREEMPTED, PREEMPTED)
    driver.scheduler.restrict(None)
    driver.run(max_steps=10)


def test_a_group_paused_before_the_failed_step_keeps_its_blocks():
    driver = Driver()
    paused = driver.add()
    driver.step()
    driver.scheduler.pause("r1")
    driver.add()
    driver.launch()
    driver.abandon()
    assert paused.status is PAUSED and paused.num_computed == 4
    driver.scheduler.resume("r1")
    driver.run(max_steps=10)


def test_a_group_swapped_in_by_a_failed_step_restarts():
    """The step should swap in its blocks, and had no time for a chunk; then the group paused."""
    driver = Driver(num_blocks=24, num_host_blocks=40)
    for number, num_tokens in enumerate((17, 60, 60)):  # the first one is evicted to host memory
        add_prompt(driver, f"q{number}", range(100 * number, 100 * number + num_tokens), max_tokens=1)
        driver.run(max_steps=2)
    late = add_prompt(driver, "late", range(19), max_tokens=3)
    driver.scheduler.budget.chunk_size = lambda *_: 0
    plan = driver.launch()
    assert not plan.chunks and len(plan.swap_ins) == 4 and late.num_computed == 16
    driver.scheduler.pause("late")
    driver.abandon()
    assert late.status is PREEMPTED and late.num_computed == 0
    del driver.scheduler.budget.chunk_size
    driver.scheduler.resume("late")
    driver.run(max_steps=6)


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_a_group_whose_swap_out_failed_is_recomputed(run_ahead):
    driver, leader = make_swapped(3 + run_ahead, driver=Driver(num_host_blocks=40, run_ahead=run_ahead))
    driver.launch()
    driver.abandon()
    assert leader.status is PREEMPTED and leader.host_table == []
    assert driver.scheduler.tables.swap.num_used == 0
    driver.scheduler.check_integrity()
    driver.run(max_steps=20)


def test_a_swapped_group_stays_swapped_when_a_later_step_fails():
    driver, leader = make_swapped()
    driver.scheduler.pause("r1")
    driver.step()
    driver.add(6)
    driver.launch()
    driver.abandon()
    assert leader.status is SWAPPED and len(leader.host_table) == 2
    driver.scheduler.resume("r1")
    driver.run(max_steps=20)
    assert leader.group.num_lost_tokens == 0


def test_a_group_whose_swap_in_failed_is_recomputed():
    driver, leader = make_swapped()
    driver.scheduler.pause("r1")
    driver.step()
    driver.scheduler.resume("r1")
    assert driver.launch().swap_ins
    driver.abandon()
    assert leader.status is PREEMPTED and driver.scheduler.tables.swap.num_used == 0
    driver.run(max_steps=20)
    assert leader.group.num_lost_tokens == 8
