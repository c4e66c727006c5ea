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
    draw_rows_R: Tensor
    paged: PagedBatch


class StepMemory:
    """State rows 0..max_seqs (row 0 pads) and inputs of up to `max_tokens` rows and `max_draws` samples.

    `places` are the indices of the int32 numbers at which the parts of the memory begin. Engine thread only.
    """

    def __init__(
        self, place: torch.device, max_seqs: int, max_blocks: int, max_tokens: int, max_draws: int, block_size: int
    ) -> None:
        self.num_rows, self.width, self._block_size = max_seqs + 1, row_width(max_blocks), block_size
        self.max_chunks = max_seqs
        num_rows, num_draws = pad_rows(max_tokens), pad_rows(max(max_draws, max_seqs))
        sizes = {
            "state": self.num_rows * self.width,
            "ids": num_rows,
            "positions": num_rows,
            "state_rows": num_rows,
            "chunk_starts": max_seqs + 1,
            "logit_rows": num_draws,
            "draw_rows": num_draws,
            "counter": 1,
        }
        self.places: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self.places[name] = end
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.whole = torch.zeros(end, dtype=torch.int32, device=place)
        self._parts = {name: self.whole[begin : begin + sizes[name]] for name, begin in self.places.items()}
        self.state_SW = self._parts["state"].view(self.num_rows, self.width)
        self.state_SW[0, POSITION] = -1
        self.counter = self._parts["counter"]
        self._same_R = torch.arange(num_draws, dtype=torch.int32, device=place)

    def column(self, row: int, column: int) -> int:
        """Return the index of a column of a state row."""
        return row * self.width + column

    def first(self, shape: StepShape) -> StepInputs:
        """Return the inputs of a shape; in a decode step each row samples from its own logits."""
        parts, rows, draws = self._parts, slice(shape.num_rows), slice(shape.num_draws)
        positions_T, state_rows_T = parts["positions"][rows], parts["state_rows"][rows]
        chunk_starts_C = None if shape.is_decode else parts["chunk_starts"]
        paged = PagedBatch(
            shape.num_rows, positions_T, state_rows_T, self.state_SW[:, TABLE:], self._block_size, chunk_starts_C
        )
        logit_rows_R = self._same_R[draws] if shape.is_decode else parts["logit_rows"][draws]
        return StepInputs(parts["ids"][rows], positions_T, state_rows_T, logit_rows_R, parts["draw_rows"][draws], paged)

    def pad(self) -> None:
        """Make every input padding: a step over padding changes only the counter. Work for `Device.run`."""
        for name in self.places:
            if name not in ("state", "counter"):
                self._parts[name].fill_(-1 if name == "positions" else 0)
