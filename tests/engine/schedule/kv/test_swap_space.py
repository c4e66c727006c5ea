"""Swap space: which blocks are copied to host memory, when they are found, and how groups are swapped in."""

from itertools import chain

import pytest

from app.engine.schedule.kv.prefix_cache import BlockContent, extend_chain
from app.engine.schedule.kv.swap_space import FIRST_BLOCK_S, Swaps, SwapSpace
from app.engine.schedule.sequence import PREEMPTED, RUNNING, SWAPPED, Sequence
from app.engine.schedule.step_plan import BlockCopy, Chunks, StepPlan
from tests.engine.schedule.fake_groups import add_prompt, make_running_group, make_swapped
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel


def content(number: int) -> BlockContent:
    return extend_chain(b"", (number,) * 4, b"")


def planned(swaps: Swaps, step: int = 1) -> StepPlan:
    """A plan with only `swaps`."""
    return StepPlan(step, Chunks(), (), (), swap_outs=swaps.outs, swap_ins=swaps.ins)


def finish(swap: SwapSpace, step: int = 1, transfer_s: float = 0.0, *, is_done: bool = True) -> Swaps:
    swaps = swap.take()
    swap.finish_step(planned(swaps, step), swaps, transfer_s, is_done=is_done)
    return swaps


def make_group(*tables: list[int], num_scheduled: int = 8, num_kept: int = 0):
    """A RUNNING group with these block tables; its sequences share the contents of their first `num_kept` blocks."""
    group = make_running_group(1, num_prompt=4, max_tokens=20, n=len(tables))
    for sequence, table in zip(group.open, tables, strict=True):
        sequence.block_table, sequence.num_scheduled, sequence.num_kept = table, num_scheduled, num_kept
        sequence.contents = [content(number) for number in range(num_kept)]
    return group


def check(swap: SwapSpace, *groups, in_flight=()) -> None:
    swap.check_integrity(groups, in_flight)


# --- Swapping out -------------------------------------------------------------------------------------------------


def test_shared_blocks_are_copied_once_and_shared_in_host_memory():
    swap, group = SwapSpace(8), make_group([5, 6], [5, 7], num_scheduled=8)
    swap.swap_out(group, block_size=4)
    first, second = (sequence.host_table for sequence in group.open)
    assert first[0] == second[0] and first[1] != second[1]
    assert swap.take().outs == (BlockCopy(5, first[0]), BlockCopy(6, first[1]), BlockCopy(7, second[1]))
    check(swap, group)


def test_empty_blocks_are_not_copied():
    swap, group = SwapSpace(8), make_group([5, 6, 7], num_scheduled=5)
    swap.swap_out(group, block_size=4)
    assert [copy.source for copy in swap.take().outs] == [5, 6]


def test_blocks_in_host_memory_are_not_copied_again():
    swap, group = SwapSpace(8), make_group([5, 6], num_kept=1)
    swap.store(content(0), 9)
    (stored,) = finish(swap).outs
    swap.step = 2
    swap.swap_out(group, block_size=4)
    (copied,) = swap.take().outs
    assert copied.source == 6 and group.open[0].host_table == [stored.target, copied.target]
    check(swap, group)


def test_equal_blocks_are_copied_once_in_a_step():
    swap, group = SwapSpace(8), make_group([5, 6], num_kept=2)
    swap.swap_out(group, block_size=4)
    swap.store(content(0), 7)
    swap.store(content(1), 8)
    assert len(swap.take().outs) == 2


def test_a_copy_is_found_when_its_step_is_done():
    swap = SwapSpace(8)
    swap.store(content(0), 5)
    swaps = swap.take()
    assert swap.cache.find(content(0)) is None
    check(swap, in_flight=[swaps])
    swap.finish_step(planned(swaps), swaps, 0.0, is_done=True)
    assert swap.cache.find(content(0)) == swaps.outs[0].target and swap.num_used == 1
    check(swap)


def test_a_copy_whose_step_failed_is_not_found_and_its_block_is_free():
    swap = SwapSpace(8)
    swap.store(content(0), 5)
    finish(swap, is_done=False)
    assert swap.cache.find(content(0)) is None and swap.num_used == 0
    check(swap)


def test_an_evicted_block_is_lost_if_all_host_blocks_are_in_use():
    swap, group = SwapSpace(2), make_group([5, 6])
    swap.swap_out(group, block_size=4)
    swap.store(content(0), 7)
    assert [copy.source for copy in finish(swap).outs] == [5, 6]
    check(swap, group)


def test_the_least_recently_used_host_block_is_evicted():
    swap = SwapSpace(2)
    for number in range(2):
        swap.store(content(number), 5 + number)
    finish(swap)
    block_id = swap.cache.find(content(0))
    swap.pool.share([block_id])  # the older one is used again
    swap.pool.release([block_id], 0)
    swap.step = 2
    swap.store(content(2), 9)
    finish(swap, step=2)
    assert [swap.cache.find(content(number)) is not None for number in range(3)] == [True, False, True]


def test_a_host_block_that_a_step_reads_or_writes_is_fenced_until_it_is_done():
    swap, group = SwapSpace(4), make_group([5, 6])
    swap.swap_out(group, block_size=4)
    (sequence,) = group.open
    out = swap.take()
    swap.pool.release(sequence.host_table, 0)  # aborted during its swap-out
    assert swap.pool.num_fenced == 2 and swap.pool.num_free == 2
    swap.finish_step(planned(out), out, 0.0, is_done=True)
    assert swap.pool.num_free == 4
    (block_id,) = swap.pool.allocate(1)
    swap.step = 2
    swap.copy_in(block_id, 9)
    swap.pool.release([block_id], 0)
    assert swap.take().ins == (BlockCopy(block_id, 9),) and swap.pool.num_free == 3
    swap.pool.finish_step(2)
    assert swap.pool.num_free == 4


def test_the_time_of_a_block_is_a_running_mean_over_measured_steps():
    swap, group = SwapSpace(40), make_group([5, 6])
    finish(swap, transfer_s=5.0)  # no block was moved
    swap.swap_out(group, block_size=4)
    finish(swap, step=2)  # not measured
    assert swap.block_s == FIRST_BLOCK_S
    times = [swap.block_s]
    for number in range(36):
        swap.store(content(number), 5)
        finish(swap, step=3 + number, transfer_s=0.002)
        times.append(swap.block_s)
    assert times == sorted(times) and times[-1] == pytest.approx(0.002, rel=0.01)


def test_one_slow_transfer_hardly_changes_the_mean():
    swap = SwapSpace(4)
    swap.store(content(0), 5)
    finish(swap, transfer_s=60.0)
    assert FIRST_BLOCK_S < swap.block_s < 3 * FIRST_BLOCK_S


def test_without_host_memory_no_block_is_copied():
    swap = SwapSpace(0)
    swap.store(content(0), 5)
    assert swap.take() == Swaps()


# --- Swapped groups in a driver ---------------------------------------------------------------------------------------


def tables_of(leader: Sequence) -> list[list[int]]:
    """The block tables of a group, with blocks numbered in order of appearance to show sharing."""
    tables = [sequence.block_table for sequence in leader.group.open]
    numbers = {block: number for number, block in enumerate(dict.fromkeys(chain(*tables)))}
    return [[numbers[block] for block in table] for table in tables]


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
@pytest.mark.parametrize("is_caching", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 6])
def test_a_swapped_group_continues_without_lost_tokens(run_ahead, is_caching, n, num_steps):
    driver = Driver(num_host_blocks=40, run_ahead=run_ahead, enable_prefix_caching=is_caching)
    driver, leader = make_swapped(num_steps + run_ahead, driver=driver, n=n)
    num_scheduled = leader.num_scheduled
    driver.run_until(lambda: leader.status is RUNNING)
    assert leader.num_scheduled >= num_scheduled and leader.group.num_lost_tokens == 0
    driver.run(max_steps=20)
    assert driver.scheduler.preemption.counts.num_swaps == 1 and len(driver.finished) == n
    assert driver.scheduler.tables.pool.num_free == 64


def test_a_group_is_copied_out_and_in_by_two_plans():
    driver, _ = make_swapped(num_steps=3)  # 8 tokens are computed
    other = driver.add(40, max_tokens=1, arrival_time=0.0)
    driver.scheduler.pause("r1")
    out = driver.step()
    assert len(out.swap_outs) == 2 and out.swap_ins == () and other.is_finished
    assert driver.scheduler.tables.swap.num_used == 2
    driver.scheduler.resume("r1")
    swapped_in = driver.step()
    assert [copy.source for copy in swapped_in.swap_ins] == [copy.target for copy in out.swap_outs]
    assert (swapped_in.chunks.starts[0], swapped_in.num_tokens) == (8, 1)
    assert driver.scheduler.tables.swap.num_used == 0
    driver.run(max_steps=12)


def test_blocks_are_still_shared_after_a_swap():
    driver, leader = make_swapped(num_steps=1, n=3)  # all share a partial block, before their first write
    driver.step()
    assert tables_of(leader) == [[0, 1], [0, 2], [0, 3]]  # the copies were for their first writes
    driver, leader = make_swapped(num_steps=4, n=3)
    before = [[0, 1, 2], [0, 3, 4], [0, 5, 6]]
    driver.scheduler.resume("r1")
    driver.run_until(lambda: leader.status is RUNNING)
    assert tables_of(leader) == before
    driver.run(max_steps=20)


def test_blocks_still_cached_on_the_device_are_not_swapped_in():
    driver, _ = make_swapped(num_steps=4, num_prompt=16, driver=Driver(num_host_blocks=40))
    plan = driver.step()
    assert len(plan.swap_outs) == 5 and len(plan.swap_ins) == 1  # four full blocks are cached, the partial one is not
    driver.run(max_steps=12)


def test_a_swapped_group_restarts_first_once_it_fits_with_its_copies():
    driver = Driver(num_blocks=8, num_host_blocks=40, enable_prefix_caching=False)
    driver, leader = make_swapped(num_steps=1, max_tokens=3, driver=driver, n=3)  # 2 blocks, 2 copies, a watermark
    running = driver.add(16, max_tokens=4, arrival_time=0.0)
    driver.scheduler.pause("r1")
    driver.step()
    driver.scheduler.resume("r1")
    driver.add(1, max_tokens=1)
    driver.step()
    assert leader.status is SWAPPED and driver.scheduler.queues.num_waiting == 2  # 4 blocks are free, 5 needed
    driver.run_until(lambda: leader.status is RUNNING)
    assert running.is_finished
    driver.run(max_steps=30)


def test_a_sequence_that_ends_while_swapped_frees_its_host_blocks():
    driver, leader = make_swapped(num_steps=3, n=2)
    driver.scheduler.pause("r1")
    driver.step()
    assert driver.scheduler.tables.swap.num_used == 3
    driver.scheduler.finish(leader)
    assert driver.scheduler.tables.swap.num_used == 2 and leader.host_table == []
    driver.scheduler.check_integrity()
    driver.scheduler.abort("r1")
    assert driver.scheduler.tables.swap.num_used == 0
    driver.scheduler.check_integrity()


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_host_blocks_of_a_group_aborted_in_its_swap_out_are_fenced(run_ahead):
    driver = Driver(num_blocks=8, num_host_blocks=8, run_ahead=run_ahead, enable_prefix_caching=False)
    driver.add(10, max_tokens=9)
    driver.run_until(lambda: driver.in_flight == [] or driver.model.num_steps == 3)
    driver.scheduler.pause("r1")
    while driver.in_flight:
        driver.finish_step()
    driver.add(26, max_tokens=4)
    (copy, *_) = driver.launch().swap_outs
    driver.scheduler.abort("r1")
    swap = driver.scheduler.tables.swap
    assert swap.pool.num_fenced == swap.num_used == 3 and swap.pool.num_references(copy.target) == 0
    driver.finish_step()
    assert swap.num_used == 0
    driver.run(max_steps=10)


def test_transfers_are_measured_with_their_plans():
    driver = Driver(num_host_blocks=40, enable_prefix_caching=False)
    driver.model = FakeModel(4, Costs(per_block=0.5))
    make_swapped(num_steps=3, driver=driver)
    driver.run(max_steps=20)
    assert driver.scheduler.tables.swap.block_s > FIRST_BLOCK_S


# --- The second tier of the prefix cache --------------------------------------------------------------------------


def driver_with_evicted_blocks(num_host_blocks: int = 40) -> Driver:
    """A driver in which the cached blocks of "a", tokens 0 to 16, were evicted by a longer prompt."""
    driver = Driver(num_blocks=8, num_host_blocks=num_host_blocks)
    add_prompt(driver, "a", range(17), max_tokens=1)
    driver.run(max_steps=3)
    add_prompt(driver, "b", range(100, 132), max_tokens=1)
    driver.run(max_steps=3)
    return driver


def test_an_evicted_block_is_copied_out_and_found_by_a_later_prompt():
    driver = driver_with_evicted_blocks()
    swap = driver.scheduler.tables.swap
    assert swap.num_used == 4
    later = add_prompt(driver, "a again", range(18), max_tokens=3)
    plan = driver.step()
    assert len(plan.swap_ins) == 4 and (plan.chunks.starts[0], plan.num_tokens) == (16, 2)
    assert later.group.num_cached_tokens == 16 and driver.scheduler.planner.starts.counts.num_prefix_hits == 16
    driver.run(max_steps=5)
    third = add_prompt(driver, "and again", range(18), max_tokens=1)
    assert driver.step().swap_ins == () and third.group.num_cached_tokens == 16  # on the device now


def test_a_prompt_may_be_found_on_device_and_host():
    driver = Driver(num_blocks=8, num_host_blocks=40)
    add_prompt(driver, "a", range(17), max_tokens=1)
    driver.run(max_steps=3)
    add_prompt(driver, "b", range(100, 124), max_tokens=1)  # four blocks were free, two are a's last ones
    driver.run(max_steps=3)
    later = add_prompt(driver, "a again", range(18), max_tokens=1)
    plan = driver.step()
    assert len(plan.swap_ins) == 2 and later.group.num_cached_tokens == 16


def test_found_host_blocks_are_not_evicted_by_a_preemption():
    """A PAUSED group should be swapped out in the same step, and all host blocks are the found ones."""
    driver = Driver(num_blocks=8, num_host_blocks=4)
    paused = driver.add(15, max_tokens=9)
    driver.step()
    driver.scheduler.pause("r1")
    for name, prompt in (("a", range(13)), ("b", range(100, 116))):  # b evicts the blocks of a
        add_prompt(driver, name, prompt, max_tokens=1)
        driver.step()
    later = add_prompt(driver, "a again", range(26), max_tokens=2)
    plan = driver.step()
    assert len(plan.swap_ins) == 3 and later.group.num_cached_tokens == 12
    assert paused.status is PREEMPTED
    driver.scheduler.resume("r1")
    driver.run(max_steps=20)


def test_without_caching_no_block_is_evicted_to_host_memory():
    driver = Driver(num_blocks=8, num_host_blocks=40, enable_prefix_caching=False)
    for number in range(3):
        add_prompt(driver, f"q{number}", range(100 * number, 100 * number + 30), max_tokens=2)
    driver.run(max_steps=10)
    assert driver.scheduler.tables.swap.num_used == 0


def test_blocks_of_a_swapped_group_are_found_by_other_requests():
    driver, leader = make_swapped(num_prompt=9, driver=Driver(num_blocks=16, num_host_blocks=40))
    driver.scheduler.pause("r1")
    other = add_prompt(driver, "b", range(5000, 5064), max_tokens=1)  # all device blocks are reused
    driver.run_until(lambda: other.is_finished)
    again = add_prompt(driver, "again", leader.prompt_token_ids, max_tokens=1)
    assert len(driver.step().swap_ins) == 2 and again.group.num_cached_tokens == 8
    driver.scheduler.resume("r1")
    driver.run(max_steps=20)


@pytest.mark.parametrize("num_steps", [1, 3, 4])
def test_blocks_of_a_group_are_found_after_its_swap_in(num_steps):
    """Also the swapped-in blocks, and those that were partial then."""
    driver, leader = make_swapped(num_steps, driver=Driver(num_blocks=16, num_host_blocks=40))
    driver.scheduler.pause("r1")
    add_prompt(driver, "b", range(5000, 5064), max_tokens=1)  # all device blocks are reused
    driver.step()
    driver.scheduler.resume("r1")
    driver.run_until(lambda: leader.is_finished)
    cache = driver.scheduler.tables.cache
    assert [cache.find(content) is not None for content in leader.contents] == [True] * 4
    turn_2 = [*leader.prompt_token_ids, *leader.output_token_ids, 7, 8]
    again = add_prompt(driver, "turn 2", turn_2, max_tokens=1)
    driver.step()
    assert again.group.num_cached_tokens == 16  # of 17 that were computed
