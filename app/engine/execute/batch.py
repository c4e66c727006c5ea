"""The persistent state rows and the input tensors of a step: a plan's changes are applied, nothing is rebuilt."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from app.engine.schedule.plan import StepPlan
from app.kernels.ops import PagedBatch, pad_rows


class StepInputs(NamedTuple):
    """Views of the input buffers for one step; T and R are padded."""

    ids_T: Tensor
    logit_rows_R: Tensor
    paged: PagedBatch


class BatchState:
    """Block tables of rows 0..max_num_seqs (row 0 pads) and the buffers a step's tokens are laid out in.

    Engine thread only.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, max_tokens: int) -> None:
        self.block_tables_SB = torch.zeros(max_num_seqs + 1, max_blocks, dtype=torch.int32)
        num_rows = pad_rows(max_tokens)
        self._ids_T = torch.zeros(num_rows, dtype=torch.int64)
        self._positions_T = torch.zeros(num_rows, dtype=torch.int64)
        self._state_rows_T = torch.zeros(num_rows, dtype=torch.int64)
        self._logit_rows_R = torch.zeros(pad_rows(max_num_seqs), dtype=torch.int64)

    def apply(self, plan: StepPlan) -> StepInputs:
        """Append the plan's blocks and lay out its tokens; padding rows repeat token 0 at position 0 of row 0."""
        tables = self.block_tables_SB.numpy()
        for append in plan.block_appends:
            tables[append.row, append.first : append.first + len(append.block_ids)] = append.block_ids
        ids, positions, state_rows = self._ids_T.numpy(), self._positions_T.numpy(), self._state_rows_T.numpy()
        row = 0
        for chunk in plan.chunks:
            end = row + len(chunk.token_ids)
            ids[row:end] = chunk.token_ids
            positions[row:end] = range(chunk.start, chunk.start + len(chunk.token_ids))
            state_rows[row:end] = chunk.row
            row = end
        padded, padded_logits = pad_rows(row), pad_rows(len(plan.logit_rows))
        ids[row:padded] = positions[row:padded] = state_rows[row:padded] = 0
        logit_rows = self._logit_rows_R.numpy()
        logit_rows[: len(plan.logit_rows)] = plan.logit_rows
        logit_rows[len(plan.logit_rows) : padded_logits] = 0
        paged = PagedBatch(row, self._positions_T[:padded], self._state_rows_T[:padded], self.block_tables_SB)
        return StepInputs(self._ids_T[:padded], self._logit_rows_R[:padded_logits], paged)
