"""The block pool: states, references, fences."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.engine.schedule.blocks import BlockPool


def test_a_pool_of_n_blocks_hands_out_n_and_never_block_0():
    pool = BlockPool(5)
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    assert not pool.can_allocate(1)


def test_asking_for_more_than_is_free_raises_and_changes_nothing():
    pool = BlockPool(3)
    table = pool.allocate(2)
    with pytest.raises(ValueError, match="2 blocks asked for, 1 are free"):
        pool.allocate(2)
    assert pool.num_free == 1
    pool.check_integrity([table])


def test_released_blocks_are_free_at_once_when_no_step_in_flight_used_them():
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


def test_freeing_twice_raises_and_changes_nothing():
    pool = BlockPool(3)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.release(first, last_step=0)
    with pytest.raises(ValueError, match="not in use"):
        pool.release(second + first, last_step=0)
    with pytest.raises(ValueError, match="named twice"):
        pool.release(second + second, last_step=0)
    pool.check_integrity([second])


def test_a_shared_block_is_freed_with_its_last_reference():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.share(table)
    pool.release(table, last_step=0)
    assert pool.num_free == 0
    pool.release(table, last_step=0)
    assert pool.num_free == 1


def test_a_shared_block_stays_fenced_for_the_latest_step_of_all_its_holders():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.share(table)
    pool.release(table, last_step=2)
    pool.release(table, last_step=1)
    pool.finish_step(1)
    assert pool.num_free == 0
    pool.finish_step(2)
    assert pool.num_free == 1


def test_a_free_block_cannot_be_shared():
    with pytest.raises(ValueError, match="not in use"):
        BlockPool(1).share([1])


def test_integrity_notices_a_lost_block_and_a_wrong_count():
    pool = BlockPool(3)
    table = pool.allocate(2)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([table, table])
    pool._free.clear()
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check_integrity([table])


class PoolMachine(RuleBasedStateMachine):
    """Random holders over a pool of 12 blocks; steps end in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.tables: list[tuple[list[int], int]] = []
        self.newest = 0

    @rule(count=st.integers(0, 5))
    def allocate(self, count):
        if self.pool.can_allocate(count):
            self.newest += 1
            self.tables.append((self.pool.allocate(count), self.newest))
        else:
            with pytest.raises(ValueError):
                self.pool.allocate(count)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data):
        table, _ = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append((list(table), self.newest))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        self.pool.release(*self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @precondition(lambda self: self.pool.last_done_step < self.newest)
    @rule()
    def finish_step(self):
        self.pool.finish_step(self.pool.last_done_step + 1)

    @invariant()
    def books_are_right(self):
        self.pool.check_integrity(table for table, _ in self.tables)

    def teardown(self):
        for table in self.tables:
            self.pool.release(*table)
        for step in range(self.pool.last_done_step + 1, self.newest + 1):
            self.pool.finish_step(step)
        assert self.pool.num_free == 12


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_no_order_of_calls_loses_a_block = PoolMachine.TestCase
