"""Failures of other engines (vLLM's issue numbers), each as a small scenario that must work here."""

import pytest

from app.contract.errors import ContextLengthExceeded, KVCapacityExceeded
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.sequence import PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.open_requests import num_open

A_WEEK_S = 7 * 24 * 3600.0


@pytest.mark.parametrize(
    ("limits", "error"), [({}, KVCapacityExceeded), ({"max_model_len": 20}, ContextLengthExceeded)]
)
def test_a_request_that_never_fits_is_rejected_and_blocks_no_other(limits, error):
    """#39734, #9263: one request too long for the pool, or for the model, stayed at the head of the queue for ever."""
    driver = Driver(num_blocks=6, **limits)
    before = driver.add(num_prompt=4)
    with pytest.raises(error):
        driver.add(num_prompt=24, max_tokens=4)
    after = driver.add(num_prompt=4)
    driver.run(max_steps=10)
    assert driver.finished == [before, after]


def test_two_groups_that_need_a_block_do_not_deadlock():
    """#45387: two groups append, are parked, and stall: each holds the blocks that the other needs."""
    driver = Driver(num_blocks=6)
    old, young = driver.add(num_prompt=8, max_tokens=16), driver.add(num_prompt=8, max_tokens=16)
    driver.run_until(lambda: young.status is PREEMPTED)
    assert old.status is RUNNING and old.num_tokens > 8
    driver.run(max_steps=60)
    assert driver.finished == [old, young]


def test_a_request_after_a_long_idle_time_starts():
    """#45414: after hours without requests the next one deadlocked."""
    driver = Driver(num_blocks=6)
    driver.add()
    driver.run(max_steps=10)
    for _ in range(3):
        assert driver.scheduler.schedule(A_WEEK_S) is None
    late = driver.scheduler.add(EngineRequest("late", (1, 2), SamplingParams(max_tokens=2, seed=0), A_WEEK_S))
    assert driver.step() is not None and late.status is RUNNING
    driver.run(max_steps=5)


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_one_victim_suffices_while_its_blocks_are_fenced(run_ahead):
    """#49674: the blocks of a victim in flight are not free at once, so more and more victims were chosen."""
    driver = Driver(num_blocks=8, run_ahead=run_ahead, enable_prefix_caching=False)
    sequences = [driver.add(num_prompt=5, max_tokens=12) for _ in range(4)]
    driver.run_until(lambda: driver.scheduler.preemption.counts.num_preemptions > 0)
    for _ in range(run_ahead):
        driver.step()
    assert [sequence.status for sequence in sequences].count(PREEMPTED) == 1
    driver.run(max_steps=200)
    assert sorted(one.id for one in driver.finished) == [one.id for one in sequences]


def test_no_step_is_empty_while_there_is_work():
    """#15996: the scheduler returned empty schedules for ever."""
    driver = Driver(num_blocks=5, max_num_seqs=3)
    for index in range(12):
        driver.add(num_prompt=1 + index % 9, max_tokens=1 + index % 11)
    while num_open(driver.scheduler):
        plan = driver.step()
        assert plan is not None and plan.num_tokens > 0


@pytest.mark.parametrize("num_host_blocks", [0, 3, 64])
def test_a_full_swap_space_stops_no_request(num_host_blocks):
    """#546: when the swap space was full, the server stopped; Quire recomputes the blocks that it cannot swap."""
    driver = Driver(num_blocks=12, num_host_blocks=num_host_blocks, enable_prefix_caching=False)
    sequences = [driver.add(num_prompt=6, max_tokens=24) for _ in range(6)]
    driver.run(max_steps=400)
    assert len(driver.finished) == len(sequences)
    preemption = driver.scheduler.preemption
    assert preemption.counts.num_preemptions > 0
    assert (preemption.counts.num_swaps > 0) == (num_host_blocks > 0) and (
        preemption.counts.num_swaps < preemption.counts.num_preemptions
    ) == (num_host_blocks < 64)


@pytest.mark.parametrize("num_host_blocks", [0, 64])
def test_a_paused_request_gives_its_blocks_to_the_queue_head(num_host_blocks):
    """#45406: the head of the queue waited for blocks of a parked request, which waited behind it."""
    driver = Driver(num_blocks=6, num_host_blocks=num_host_blocks)
    parked = driver.add(num_prompt=16, max_tokens=8)
    driver.steps(2)
    driver.scheduler.pause("r1")
    head = driver.add(num_prompt=16, max_tokens=8)
    assert (parked.status, head.status) == (PAUSED, WAITING)
    driver.step()
    assert head.status is RUNNING and parked.status is (SWAPPED if num_host_blocks else PREEMPTED)
    driver.scheduler.resume("r1")
    driver.run(max_steps=60)
    assert driver.finished == [head, parked]
