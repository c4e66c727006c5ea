"""The block pool: states, references, fences, the LRU order. Random orders of calls: test_prefix_cache_machine.py."""

from array import array

import pytest

from app.engine.schedule.kv.block_pool import MAX_REFERENCES, BlockPool


def cached_table(pool, count):
    """A table of `count` findable blocks, all of them cached."""
    table = pool.allocate(count)
    for block_id in table:
        pool.keep(block_id)
    pool.release(table, last_step=0)
    return table


def evictions(pool):
    """A list to which the pool appends every evicted block."""
    evicted = []
    pool.on_evict = evicted.append
    return evicted


# --- Free and referenced ----------------------------------------------------------------------------------------


def test_a_pool_of_n_blocks_allocates_n_and_never_block_0():
    pool = BlockPool(5)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    assert not pool.can_allocate(1)
    assert pool.num_allocated == 5


def test_allocating_too_many_blocks_raises_and_changes_nothing():
    pool = BlockPool(4)
    evicted = evictions(pool)
    cached_table(pool, 1)
    table = pool.allocate(2)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 are free"):
        pool.allocate(3)
    assert (pool.num_free, pool.num_cached, pool.num_allocated, evicted) == (2, 1, 3, [])
    pool.check_integrity([table])


def test_no_blocks_can_always_be_allocated():
    pool = BlockPool(1)
    table = pool.allocate(1)
    assert pool.can_allocate(0)
    assert pool.allocate(0) == []
    pool.check_integrity([table])


def test_the_block_released_last_is_allocated_first():
    pool = BlockPool(4)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.release(second, last_step=0)
    pool.release(first, last_step=0)
    assert pool.allocate(2) == first + second


def test_allocated_blocks_are_counted_each_time():
    pool = BlockPool(2)
    for _ in range(3):
        pool.release(pool.allocate(2), last_step=0)
    assert pool.num_allocated == 6


def test_freeing_twice_raises_and_changes_nothing():
    pool = BlockPool(3)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.release(first, last_step=0)
    with pytest.raises(ValueError, match="not in use"):
        pool.release(second + first, last_step=0)
    with pytest.raises(ValueError, match="named twice"):
        pool.release(second + second, last_step=0)
    pool.check_integrity([second])


def test_block_0_is_never_in_use():
    pool = BlockPool(2)
    for call in (pool.share, lambda ids: pool.release(ids, 0), lambda ids: pool.touch(ids, 1)):
        with pytest.raises(ValueError, match="not in use"):
            call([0])


def test_a_shared_block_is_freed_with_its_last_reference():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.share(table)
    assert pool.num_references(table[0]) == 2
    pool.release(table, last_step=0)
    assert pool.num_free == 0
    pool.release(table, last_step=0)
    assert pool.num_references(table[0]) == 0
    assert pool.num_free == 1


def test_a_free_block_cannot_be_shared_and_nothing_is_changed():
    pool = BlockPool(3)
    cached, table = cached_table(pool, 1), pool.allocate(1)
    free = {1, 2, 3} - {*cached, *table}
    with pytest.raises(ValueError, match="not in use and not findable"):
        pool.share([*cached, *table, *free])
    with pytest.raises(ValueError, match="named twice"):
        pool.share(table + table)
    assert pool.num_cached == 1
    pool.check_integrity([table])


# --- Fences -----------------------------------------------------------------------------------------------------


def test_released_blocks_are_free_at_once_without_a_step_in_flight():
    pool = BlockPool(3)
    pool.finish_step(7)
    pool.release(pool.allocate(3), last_step=7)
    assert pool.num_free == 3


def test_released_blocks_are_fenced_until_their_last_step_is_done():
    pool = BlockPool(4)
    early, late = pool.allocate(2), pool.allocate(2)
    pool.release(early, last_step=1)
    pool.release(late, last_step=2)
    assert (pool.num_free, pool.num_fenced, pool.num_soon_free) == (0, 4, 4)
    pool.finish_step(1)
    assert (pool.num_free, pool.num_fenced, pool.num_soon_free) == (2, 2, 4)
    assert sorted(pool.allocate(2)) == sorted(early)
    pool.finish_step(2)
    assert pool.num_free == 2


def test_a_shared_block_is_fenced_until_the_last_step_of_all_its_tables():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.share(table)
    pool.release(table, last_step=2)
    pool.release(table, last_step=1)
    pool.finish_step(1)
    assert pool.num_free == 0
    pool.finish_step(2)
    assert pool.num_free == 1


def test_a_touched_block_is_fenced_until_the_step_that_touches_it_is_done():
    pool = BlockPool(2)
    table = pool.allocate(2)
    pool.touch(table[:1], step=3)
    pool.touch(table[:1], step=1)
    pool.release(table, last_step=0)
    assert (pool.num_free, pool.num_fenced) == (1, 1)
    for step in (1, 2):
        pool.finish_step(step)
        assert pool.num_fenced == 1
    pool.finish_step(3)
    assert (pool.num_free, pool.num_fenced) == (2, 0)


def test_a_block_without_references_cannot_be_touched():
    pool = BlockPool(2)
    cached, table = cached_table(pool, 1), pool.allocate(1)
    with pytest.raises(ValueError, match="not in use"):
        pool.touch(table + cached, step=5)
    pool.release(table, last_step=0)
    assert pool.num_fenced == 0


# --- Cached -----------------------------------------------------------------------------------------------------


def test_a_released_findable_block_is_cached_and_others_are_free():
    pool = BlockPool(3)
    table = pool.allocate(3)
    pool.keep(table[0])
    pool.release(table, last_step=0)
    assert (pool.num_cached, pool.num_free, pool.num_soon_free) == (1, 3, 3)
    assert pool.is_findable(table[0])
    pool.check_integrity([])


def test_a_free_block_cannot_be_kept():
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="block 1 is free"):
        pool.keep(1)
    pool.release(pool.allocate(1), last_step=0)
    with pytest.raises(ValueError, match="block 1 is free"):
        pool.keep(1)
    pool.check_integrity([])


def test_cached_blocks_are_allocated_after_all_free_ones():
    pool = BlockPool(4)
    evicted = evictions(pool)
    cached = cached_table(pool, 2)
    assert not set(pool.allocate(2)) & set(cached)
    assert evicted == []
    assert sorted(pool.allocate(2)) == sorted(cached)
    assert sorted(evicted) == sorted(cached)


def test_the_tail_of_a_table_is_evicted_before_its_head():
    pool = BlockPool(4)
    evicted = evictions(pool)
    table = cached_table(pool, 4)
    for _ in range(4):
        pool.allocate(1)
    assert evicted == table[::-1]


def test_the_least_recently_used_table_is_evicted_first():
    pool = BlockPool(4)
    evicted = evictions(pool)
    old, young = pool.allocate(2), pool.allocate(2)
    for block_id in old + young:
        pool.keep(block_id)
    pool.release(old, last_step=0)
    pool.release(young, last_step=0)
    pool.share(old)
    pool.release(old, last_step=0)
    assert pool.allocate(4) == young[::-1] + old[::-1]
    assert evicted == young[::-1] + old[::-1]


def test_an_evicted_block_is_already_allocated_in_the_callback():
    pool = BlockPool(1)
    (block_id,) = cached_table(pool, 1)
    calls = []
    pool.on_evict = lambda evicted: calls.append((pool.num_references(evicted), pool.is_findable(evicted)))
    table = pool.allocate(1)
    assert calls == [(1, False)]
    pool.release(table, last_step=0)
    assert (table, pool.num_cached, pool.num_free) == ([block_id], 0, 1)


def test_a_shared_cached_block_is_in_use_again():
    pool = BlockPool(2)
    evicted = evictions(pool)
    table = cached_table(pool, 2)
    pool.share(table)
    assert (pool.num_free, pool.num_cached) == (0, 0)
    assert evicted == []
    pool.check_integrity([table])


def test_only_findable_fenced_blocks_can_be_shared():
    pool = BlockPool(2)
    table = pool.allocate(2)
    pool.keep(table[0])
    pool.release(table, last_step=1)
    with pytest.raises(ValueError, match="not findable"):
        pool.share(table)
    pool.share(table[:1])
    assert pool.num_fenced == 1
    pool.check_integrity([table[:1]])
    pool.finish_step(1)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.check_integrity([table[:1]])


def test_a_block_shared_while_fenced_is_fenced_again_after_release():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.keep(table[0])
    pool.release(table, last_step=1)
    pool.share(table)
    pool.release(table, last_step=0)
    assert pool.num_fenced == 1
    pool.check_integrity([])
    pool.finish_step(1)
    assert (pool.num_fenced, pool.num_cached) == (0, 1)


def test_fenced_blocks_become_cached_when_their_step_is_done():
    pool = BlockPool(3)
    table = pool.allocate(3)
    for block_id in table:
        pool.keep(block_id)
    pool.release(table, last_step=1)
    assert (pool.num_cached, pool.num_fenced) == (0, 3)
    pool.finish_step(1)
    assert pool.num_cached == 3
    assert pool.allocate(3) == table[::-1]


def test_a_fenced_block_can_still_be_kept():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.release(table, last_step=1)
    pool.keep(table[0])
    pool.finish_step(1)
    assert pool.num_cached == 1


def test_a_forgotten_cached_block_becomes_free():
    pool = BlockPool(2)
    evicted = evictions(pool)
    table = cached_table(pool, 2)
    pool.forget(table[0])
    pool.forget(table[0])
    assert (pool.num_cached, pool.num_free) == (1, 2)
    assert pool.allocate(1) == table[:1]
    assert evicted == []


def test_a_forgotten_referenced_or_fenced_block_becomes_free():
    pool = BlockPool(2)
    referenced, fenced = pool.allocate(1), pool.allocate(1)
    pool.keep(referenced[0])
    pool.keep(fenced[0])
    pool.release(fenced, last_step=1)
    pool.forget(referenced[0])
    pool.forget(fenced[0])
    pool.check_integrity([referenced])
    pool.release(referenced, last_step=0)
    pool.finish_step(1)
    assert (pool.num_cached, pool.num_free) == (0, 2)


# --- Integrity --------------------------------------------------------------------------------------------------


def test_integrity_detects_a_lost_block_and_a_wrong_count():
    pool = BlockPool(3)
    table = pool.allocate(2)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([table, table])
    pool._free.clear()
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check_integrity([table])


def test_integrity_detects_a_block_in_two_states():
    pool = BlockPool(2)
    table = cached_table(pool, 1)
    pool._free.append(table[0])
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check_integrity([])


def test_integrity_detects_wrong_fences():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.release(table, last_step=2)
    pool.num_fenced = 0
    with pytest.raises(AssertionError, match="miscounted"):
        pool.check_integrity([])
    pool.num_fenced = 1
    pool.finish_step(3)
    with pytest.raises(AssertionError, match="not lifted"):
        pool.check_integrity([])
    pool.last_done_step = 0
    pool._last_step[table[0]] = 3
    with pytest.raises(AssertionError, match="wrong step"):
        pool.check_integrity([])


def test_integrity_detects_a_wrong_findable_flag():
    pool = BlockPool(2)
    (cached,) = cached_table(pool, 1)
    pool._findable[cached] = False
    with pytest.raises(AssertionError, match="is not findable"):
        pool.check_integrity([])
    pool._findable = [False, True, True]
    with pytest.raises(AssertionError, match="a free block is findable"):
        pool.check_integrity([])
    pool._findable = [i == cached for i in range(3)]
    pool._last_step[cached] = 1
    with pytest.raises(AssertionError, match="without a fence"):
        pool.check_integrity([])


def test_a_snapshot_has_the_references_what_can_be_found_and_the_fences():
    pool = BlockPool(5)
    cached_table(pool, 1)
    one, two, three = pool.allocate(3)
    pool.share([one])
    pool.keep(two)
    pool.release([three], last_step=1)
    snapshot = pool.snapshot()
    references, fenced = array("H", snapshot.references), array("I", snapshot.fenced)
    assert {block_id: references[block_id] for block_id in (0, one, two, three)} == {0: 0, one: 2, two: 1, three: 0}
    assert [block_id for block_id, is_findable in enumerate(snapshot.findable) if is_findable] == sorted([1, two])
    assert len(references) == len(snapshot.findable) == 6 and list(fenced) == [three]
    pool.finish_step(1)
    assert pool.snapshot().fenced == b"" and list(fenced) == [three], "a snapshot does not change"


def test_a_snapshot_of_more_references_than_it_can_say_has_the_most():
    pool = BlockPool(1)
    (block_id,) = pool.allocate(1)
    for _ in range(MAX_REFERENCES):
        pool.share([block_id])
    assert pool.num_references(block_id) == MAX_REFERENCES + 1
    assert list(array("H", pool.snapshot().references)) == [0, MAX_REFERENCES]
