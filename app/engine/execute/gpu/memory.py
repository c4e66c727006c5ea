"""The inputs of a step that the host writes, in one piece of device memory: state rows, then the step's own inputs.

The memory is one tensor of int32, so one scatter of (index, value) pairs writes all changes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from app.engine.execute.gpu.shapes import StepShape
from app.kernels.ops import PagedBatch, pad_rows
from app.kernels.triton.row_layout import POSITION, TABLE, row_width

_ALIGNMENT = 32  # int32 numbers: 128 bytes, what a warp reads at once


class StepInputs(NamedTuple):
    """The inputs of one shape: views of the memory's first rows."""

    ids_T: Tensor
    positions_T: Tensor
    state_rows_T: Tensor
    logit_rows_R: Tensor
    sampled_rows_R: Tensor
    paged: PagedBatch


class StepMemory:
    """State rows 0..max_seqs (row 0 pads) and inputs of up to `max_tokens` token rows and `max_outputs` logit rows.

    `offsets` are the indices in `buffer` at which the parts of the memory begin. Engine thread only.
    """

    def __init__(
        self, device: torch.device, max_seqs: int, max_blocks: int, max_tokens: int, max_outputs: int, block_size: int
    ) -> None:
        self.num_rows, self.width, self._block_size = max_seqs + 1, row_width(max_blocks), block_size
        self.max_chunks = max_seqs
        num_rows, num_logit_rows = pad_rows(max_tokens), pad_rows(max(max_outputs, max_seqs))
        sizes = {
            "state": self.num_rows * self.width,
            "ids": num_rows,
            "positions": num_rows,
            "state_rows": num_rows,
            "chunk_starts": max_seqs + 1,
            "logit_rows": num_logit_rows,
            "sampled_rows": num_logit_rows,
            "counter": 1,
        }
        self.offsets: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self.offsets[name] = end
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.buffer = torch.zeros(end, dtype=torch.int32, device=device)
        self._parts = {name: self.buffer[begin : begin + sizes[name]] for name, begin in self.offsets.items()}
        self.state_SW = self._parts["state"].view(self.num_rows, self.width)
        self.state_SW[0, POSITION] = -1
        self.counter = self._parts["counter"]
        self._row_numbers_R = torch.arange(num_logit_rows, dtype=torch.int32, device=device)

    def column(self, row: int, column: int) -> int:
        """Return the index of a column of a state row."""
        return row * self.width + column

    def inputs(self, shape: StepShape) -> StepInputs:
        """Return the inputs of a shape; in a decode step each row samples from its own logits."""
        parts, rows, logit_rows = self._parts, slice(shape.num_rows), slice(shape.num_logit_rows)
        ids_T, positions_T, state_rows_T = parts["ids"][rows], parts["positions"][rows], parts["state_rows"][rows]
        chunk_starts_C = None if shape.is_decode else parts["chunk_starts"]
        paged = PagedBatch(
            shape.num_rows, positions_T, state_rows_T, self.state_SW[:, TABLE:], self._block_size, chunk_starts_C
        )
        logit_rows_R = (self._row_numbers_R if shape.is_decode else parts["logit_rows"])[logit_rows]
        return StepInputs(ids_T, positions_T, state_rows_T, logit_rows_R, parts["sampled_rows"][logit_rows], paged)

    def pad(self) -> None:
        """Make every input padding: a step over padding changes only the counter. Work for `Device.run`."""
        for name in self.offsets:
            if name not in ("state", "counter"):
                self._parts[name].fill_(-1 if name == "positions" else 0)
