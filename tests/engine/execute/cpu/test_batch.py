"""The tokens and blocks of a plan as tensors: padded, persistent, and changed only by the plan."""

from __future__ import annotations

import pytest
import torch

from app.engine.execute.cpu.batch import BatchState
from app.engine.schedule.step_plan import Chunk, Chunks, SampleRow, StepPlan, TableWrite


def plan(chunks: tuple[Chunk, ...] = (), logit_rows: tuple[int, ...] = (), *table_writes: TableWrite) -> StepPlan:
    """A step in which state row 1 samples from all `logit_rows`."""
    return StepPlan(1, Chunks.of(chunks), logit_rows, (SampleRow(1, 1),) * len(logit_rows), table_writes=table_writes)


def test_tokens_are_laid_out_in_order_and_padded_to_eight():
    batch = BatchState(max_num_seqs=4, max_blocks=6, max_tokens=20, block_size=16)
    chunks = (Chunk(2, 7, 5, (50, 51, 52)), Chunk(1, 3, 9, (90,)), Chunk(4, 8, 0, (1, 2, 3, 4, 5)))
    writes = (TableWrite(2, 0, (9, 4)), TableWrite(1, 0, (3,)), TableWrite(4, 0, (5,)))
    inputs = batch.apply(plan(chunks, (2, 3, 8), *writes))
    paged = inputs.paged
    assert inputs.ids_T.tolist() == [50, 51, 52, 90, 1, 2, 3, 4, 5, *[0] * 7]
    assert paged.num_tokens == 9
    assert paged.positions_T.tolist() == [5, 6, 7, 9, 0, 1, 2, 3, 4, *[0] * 7]
    assert paged.state_rows_T.tolist() == [2, 2, 2, 1, 4, 4, 4, 4, 4, *[0] * 7]
    assert inputs.logit_rows_R.tolist() == [2, 3, 8, 0, 0, 0, 0, 0] and inputs.num_logit_rows == 3
    assert paged.block_tables_SB[2].tolist() == [9, 4, 0, 0, 0, 0]


def test_blocks_are_appended_to_a_table():
    batch = BatchState(2, 5, 8, 16)
    batch.apply(plan((), (), TableWrite(1, 0, (7, 8)), TableWrite(2, 0, (5,))))
    batch.apply(plan((), (), TableWrite(1, 2, (9,))))
    assert batch.buffers.block_tables_SB.tolist() == [[0] * 5, [7, 8, 9, 0, 0], [5, 0, 0, 0, 0]]


def test_a_copied_block_replaces_the_shared_one():
    batch = BatchState(2, 5, 8, 16)
    batch.apply(plan((), (), TableWrite(1, 0, (7, 8, 9)), TableWrite(2, 0, (7, 8, 9))))
    batch.apply(plan((), (), TableWrite(2, 2, (4,)), TableWrite(2, 3, (6,))))
    assert batch.buffers.block_tables_SB.tolist() == [[0] * 5, [7, 8, 9, 0, 0], [7, 8, 4, 6, 0]]


def test_a_token_row_can_have_several_logit_rows():
    batch = BatchState(4, 5, 8, 16)
    assert batch.apply(plan((Chunk(1, 1, 0, (5, 6)),), (1, 1, 1, 1))).logit_rows_R.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_each_logit_row_has_the_state_row_that_samples_from_it():
    """Several sequences from one token row, or one sequence from several."""
    batch = BatchState(4, 5, 8, 16)
    sampled = (SampleRow(3, 30), SampleRow(1, 10), SampleRow(4, 40), SampleRow(4, 40))
    chunks = (Chunk(3, 30, 0, (5, 6)), Chunk(4, 40, 7, (7, 8)))
    step = StepPlan(1, Chunks.of(chunks), (1, 1, 2, 3), sampled)
    batch.apply(step)
    assert batch.buffers.sampled_rows_R[:8].tolist() == [3, 1, 4, 4, 0, 0, 0, 0]
    assert batch.sampled_positions(step) == [2, 2, 8, 9]


def test_more_logit_rows_than_the_buffers_hold_are_an_error():
    """They would be sampled from other memory."""
    batch = BatchState(4, 5, 64, 16)
    with pytest.raises(ValueError, match="broadcast"):
        batch.apply(plan((Chunk(1, 1, 0, tuple(range(40))),), tuple(range(40))))


def test_the_padding_has_nothing_of_an_earlier_larger_step():
    batch = BatchState(8, 5, 32, 16)
    batch.apply(plan((Chunk(1, 1, 40, tuple(range(100, 130))),), (29,)))
    inputs = batch.apply(plan((Chunk(3, 2, 70, (9,)),)))
    assert inputs.ids_T.tolist() == [9] + [0] * 7 and inputs.paged.positions_T.tolist() == [70] + [0] * 7
    assert inputs.paged.state_rows_T.tolist() == [3] + [0] * 7
    assert len(inputs.logit_rows_R) == inputs.num_logit_rows == 0


def test_buffers_are_reused():
    batch = BatchState(8, 5, 32, 16)
    first = batch.apply(plan((Chunk(1, 1, 0, (5, 6)),), (1,)))
    second = batch.apply(plan((Chunk(1, 1, 2, (7,)),), (0,)))
    assert first.ids_T.data_ptr() == second.ids_T.data_ptr()
    assert first.paged.block_tables_SB is second.paged.block_tables_SB
    assert second.ids_T.dtype == torch.int64
