"""Block tables: how many blocks are due, and when."""

import pytest

from app.engine.schedule.block_tables import BlockTables
from app.engine.schedule.blocks import BlockPool
from app.engine.schedule.sequence import Sequence
from tests.engine.schedule.fake_model import make_request


def make_tables(run_ahead: int = 0, num_blocks: int = 10) -> BlockTables:
    return BlockTables(BlockPool(num_blocks), block_size=4, run_ahead=run_ahead)


def make_sequence(num_prompt: int = 4, max_tokens: int = 20) -> Sequence:
    return Sequence.from_request(1, make_request("a", num_prompt, max_tokens))


@pytest.mark.parametrize("num_tokens, due", [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_without_run_ahead_a_block_is_due_when_a_token_has_no_slot(num_tokens, due):
    assert make_tables().num_missing(make_sequence(), num_tokens) == due


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_the_next_block_is_due_when_no_more_slots_are_free_than_steps_run_ahead(run_ahead):
    tables, sequence = make_tables(run_ahead), make_sequence()
    tables.append(sequence, 1)
    for num_scheduled in range(4):
        free_slots = 4 - num_scheduled
        assert tables.num_missing(sequence, num_scheduled + 1) == (free_slots <= run_ahead)


@pytest.mark.parametrize("run_ahead", [0, 1, 3])
def test_no_block_is_due_that_the_request_cannot_use(run_ahead):
    sequence = make_sequence(num_prompt=4, max_tokens=5)  # 8 slots: the ninth token needs none
    assert make_tables(run_ahead).num_missing(sequence, 8) == 2


def test_a_table_only_grows_until_it_is_dropped():
    tables, sequence = make_tables(), make_sequence()
    first = tables.append(sequence, 2)
    second = tables.append(sequence, 1)
    assert sequence.block_table == first + second
    tables.pool.check_integrity([sequence.block_table])
    tables.drop(sequence)
    assert sequence.block_table == [] and tables.pool.num_free == 10


def test_a_dropped_table_is_fenced_while_the_last_step_of_its_sequence_is_in_flight():
    tables, sequence = make_tables(), make_sequence()
    tables.append(sequence, 3)
    sequence.last_step = 1
    tables.drop(sequence)
    assert tables.pool.num_free == 7
    tables.pool.finish_step(1)
    assert tables.pool.num_free == 10


def test_append_without_enough_free_blocks_changes_nothing():
    tables, sequence = make_tables(num_blocks=2), make_sequence()
    with pytest.raises(ValueError, match="3 blocks"):
        tables.append(sequence, 3)
    assert sequence.block_table == [] and tables.pool.num_free == 2
