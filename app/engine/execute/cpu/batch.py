"""The persistent state rows and the input tensors of a step: a plan's changes are applied, nothing is rebuilt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.execute.cpu.sampling_table import SamplingTable
from app.engine.execute.masks import MaskBuffers
from app.engine.schedule.step_plan import Chunks, StepPlan
from app.kernels.ops import PagedBatch, pad_rows

_Integers = npt.NDArray[np.int64]


class StepBuffers(NamedTuple):
    """The buffers of every step's inputs; a recorded step reads them in place.

    `sampled_rows_R` are the state rows that sample from the logits of `logit_rows_R`, with parameters in
    `sampling` and `masks`.
    """

    ids_T: Tensor
    positions_T: Tensor
    state_rows_T: Tensor
    logit_rows_R: Tensor
    sampled_rows_R: Tensor
    block_tables_SB: Tensor
    block_size: int
    sampling: SamplingTable
    masks: MaskBuffers

    def paged(self, num_tokens: int, num_rows: int | None = None) -> PagedBatch:
        """Return positions and tables of the first `num_rows` rows (by default all), of which `num_tokens` are real."""
        rows = (self.positions_T[:num_rows], self.state_rows_T[:num_rows])
        return PagedBatch(num_tokens, *rows, self.block_tables_SB, self.block_size)


class StepInputs(NamedTuple):
    """One step's inputs: the first rows of the buffers, until the next step overwrites them.

    The views are made on access: a recorded step needs none, and making tensors takes time.
    """

    buffers: StepBuffers
    num_tokens: int
    num_logit_rows: int

    @property
    def ids_T(self) -> Tensor:  # noqa: N802
        """The token ids, padded."""
        return self.buffers.ids_T[: pad_rows(self.num_tokens)]

    @property
    def logit_rows_R(self) -> Tensor:  # noqa: N802
        """The token rows whose logits are computed, padded."""
        return self.buffers.logit_rows_R[: pad_rows(self.num_logit_rows)]

    @property
    def paged(self) -> PagedBatch:
        """The positions and tables of the token rows, padded."""
        return self.buffers.paged(self.num_tokens, pad_rows(self.num_tokens))


class BatchState:
    """Block tables of rows 0..max_num_seqs (row 0 pads) and the buffers for the tokens of a step.

    A step samples at most `max_logit_rows` tokens, by default one for each sequence; no output has one of the
    `eos_token_ids` before its minimum length. Without `masks` every token may be sampled. Engine thread only.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_blocks: int,
        max_tokens: int,
        block_size: int,
        max_logit_rows: int | None = None,
        eos_token_ids: Collection[int] = (),
        masks: MaskBuffers | None = None,
    ) -> None:
        def integers(num_rows: int) -> Tensor:
            return torch.zeros(pad_rows(num_rows), dtype=torch.int64)

        max_outputs = max_logit_rows or max_num_seqs
        self.buffers = buffers = StepBuffers(
            ids_T=integers(max_tokens),
            positions_T=integers(max_tokens),
            state_rows_T=integers(max_tokens),
            logit_rows_R=integers(max_outputs),
            sampled_rows_R=integers(max_outputs),
            block_tables_SB=torch.zeros(max_num_seqs + 1, max_blocks, dtype=torch.int32),
            block_size=block_size,
            sampling=SamplingTable(max_num_seqs + 1, eos_token_ids),
            masks=masks or MaskBuffers.allocate(pad_rows(max_outputs), 0),
        )
        # The same memory: writing to it through torch takes several times as long.
        self._ids, self._positions = buffers.ids_T.numpy(), buffers.positions_T.numpy()
        self._state_rows, self._tables = buffers.state_rows_T.numpy(), buffers.block_tables_SB.numpy()
        self._logit_rows, self._sampled_rows = buffers.logit_rows_R.numpy(), buffers.sampled_rows_R.numpy()

    def apply(self, plan: StepPlan) -> StepInputs:
        """Write the plan's table entries and lay out its tokens; padding rows repeat token 0 at position 0 of row 0."""
        sampling = self.buffers.sampling
        for row in plan.released_rows:
            sampling.release(row)
        for start in plan.row_starts:
            sampling.write(start)
        sampling.count_tokens(plan.chunks)
        for write in plan.table_writes:
            self._tables[write.row, write.first : write.first + len(write.block_ids)] = write.block_ids
        chunks = plan.chunks
        ids = chunks.token_ids
        state_rows: Sequence[int] | _Integers = chunks.rows
        positions: Sequence[int] | _Integers = chunks.starts
        if len(ids) > len(chunks):
            state_rows, positions = _spread(chunks)
        sampled_rows, _ = zip(*plan.sampled, strict=True) if plan.sampled else ((), ())
        _fill(self._ids, ids)
        _fill(self._positions, positions)
        _fill(self._state_rows, state_rows)
        _fill(self._logit_rows, plan.logit_rows)
        _fill(self._sampled_rows, sampled_rows)
        return StepInputs(self.buffers, len(ids), len(plan.logit_rows))

    def sampled_positions(self, plan: StepPlan) -> list[int]:
        """Return the positions, in prompt + output, of the tokens that the applied plan samples."""
        positions: list[int] = (self._positions[list(plan.logit_rows)] + 1).tolist()
        return positions


def _spread(chunks: Chunks) -> tuple[_Integers, _Integers]:
    """Return the state row and the position of every token, for chunks of any length."""
    counts = np.array(chunks.counts)
    ends = np.cumsum(counts)
    offsets = np.asarray(chunks.starts) - (ends - counts)
    return np.repeat(chunks.rows, counts), np.repeat(offsets, counts) + np.arange(ends[-1])


def _fill(buffer: _Integers, values: Sequence[int] | _Integers) -> None:
    """Write `values` and zeros up to the padded number of rows."""
    count = len(values)
    buffer[:count] = values
    buffer[count : pad_rows(count)] = 0
