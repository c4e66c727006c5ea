"""The persistent state rows and the input tensors of a step: a plan's changes are applied, nothing is rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.execute.draws import DrawTable
from app.engine.schedule.plan import StepPlan
from app.kernels.ops import PagedBatch, pad_rows

_Integers = npt.NDArray[np.int64]


class StepInputs(NamedTuple):
    """Views of the input buffers for one step; T and R are padded, `num_logit_rows` of R are real.

    `draw_rows_R` are the state rows that draw from the logits of `logit_rows_R`, and `draws` says how each row does.
    """

    ids_T: Tensor
    logit_rows_R: Tensor
    paged: PagedBatch
    num_logit_rows: int
    draw_rows_R: Tensor
    draws: DrawTable


class BatchState:
    """Block tables of rows 0..max_num_seqs (row 0 pads) and the buffers a step's tokens are laid out in.

    A step draws at most `max_logit_rows` tokens, by default one for each sequence. Engine thread only.
    """

    def __init__(
        self, max_num_seqs: int, max_blocks: int, max_tokens: int, block_size: int, max_logit_rows: int | None = None
    ) -> None:
        self._block_size = block_size
        self.block_tables_SB = torch.zeros(max_num_seqs + 1, max_blocks, dtype=torch.int32)
        num_rows = pad_rows(max_tokens)
        self._ids_T = torch.zeros(num_rows, dtype=torch.int64)
        self._positions_T = torch.zeros(num_rows, dtype=torch.int64)
        self._state_rows_T = torch.zeros(num_rows, dtype=torch.int64)
        self._logit_rows_R = torch.zeros(pad_rows(max_logit_rows or max_num_seqs), dtype=torch.int64)
        self._draw_rows_R = torch.zeros_like(self._logit_rows_R)
        self._draws = DrawTable(max_num_seqs + 1)

    @property
    def inputs(self) -> StepInputs:
        """The whole buffers, of which a step uses the first rows."""
        paged = PagedBatch(0, self._positions_T, self._state_rows_T, self.block_tables_SB, self._block_size)
        return StepInputs(self._ids_T, self._logit_rows_R, paged, 0, self._draw_rows_R, self._draws)

    def apply(self, plan: StepPlan) -> StepInputs:
        """Write the plan's table entries and lay out its tokens; padding rows repeat token 0 at position 0 of row 0."""
        for start in plan.row_starts:
            self._draws.write(start)
        tables = self.block_tables_SB.numpy()
        for write in plan.table_writes:
            tables[write.row, write.first : write.first + len(write.block_ids)] = write.block_ids
        # Transposed and flattened without a loop of our own: the device waits for this in every step.
        rows, _, starts, tokens = zip(*plan.chunks, strict=True) if plan.chunks else ((), (), (), ())
        ids = list(chain.from_iterable(tokens))
        state_rows, positions = (rows, starts) if len(ids) == len(rows) else _spread(rows, starts, tokens)
        paged = PagedBatch(
            len(ids),
            _fill(self._positions_T, positions),
            _fill(self._state_rows_T, state_rows),
            self.block_tables_SB,
            self._block_size,
        )
        draw_rows, _ = zip(*plan.sampled, strict=True) if plan.sampled else ((), ())
        return StepInputs(
            _fill(self._ids_T, ids),
            _fill(self._logit_rows_R, plan.logit_rows),
            paged,
            len(plan.logit_rows),
            _fill(self._draw_rows_R, draw_rows),
            self._draws,
        )


def _spread(rows: Sequence[int], starts: Sequence[int], tokens: Sequence[Sequence[int]]) -> tuple[_Integers, _Integers]:
    """Return the state row and the position of every token, where some chunks have more than one."""
    counts = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ends = np.cumsum(counts)
    offsets = np.asarray(starts) - (ends - counts)
    return np.repeat(rows, counts), np.repeat(offsets, counts) + np.arange(ends[-1])


def _fill(buffer: Tensor, values: Sequence[int] | _Integers) -> Tensor:
    """Write `values` and zeros up to the padded number of rows; return the view of those rows."""
    padded = pad_rows(len(values))
    view = buffer[:padded]
    array = view.numpy()
    array[: len(values)] = values
    array[len(values) :] = 0
    return view
