"""The inputs of a step that the host writes, in one piece of device memory: state rows, then the step's own inputs.

The memory is one tensor of int32. Changes are gathered on the host as (index, value) pairs, sent by one copy and
scattered by one kernel.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.execute.gpu.device import Device
from app.engine.execute.gpu.shapes import StepShape
from app.kernels.ops import PagedBatch, pad_rows
from app.kernels.triton.row_layout import POSITION, TABLE, row_width
from app.kernels.triton.rows import scatter

Integers = npt.NDArray[np.int32]

_ALIGNMENT = 32  # int32 numbers: 128 bytes, what a warp reads at once
_NUM_BUFFERS = 8
_HEADER = 2
_CAPACITY = 16384  # changes that go in one copy; a step with more (a long context's block table) takes several


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

    `work_length` numbers list the work of attention in mixed steps. `offsets` are the indices in `buffer` at which the
    parts of the memory begin. Engine thread only.
    """

    def __init__(
        self,
        device: torch.device,
        max_seqs: int,
        max_blocks: int,
        max_tokens: int,
        max_outputs: int,
        work_length: int,
        block_size: int,
    ) -> None:
        self.num_rows, self.width, self._block_size = max_seqs + 1, row_width(max_blocks), block_size
        num_rows, num_logit_rows = pad_rows(max_tokens), pad_rows(max(max_outputs, max_seqs))
        sizes = {
            "state": self.num_rows * self.width,
            "ids": num_rows,
            "positions": num_rows,
            "state_rows": num_rows,
            "work": work_length,
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
        paged = PagedBatch(
            shape.num_rows,
            positions_T,
            state_rows_T,
            self.state_SW[:, TABLE:],
            self._block_size,
            None if shape.is_decode else parts["work"],
            shape.num_splits,
        )
        logit_rows_R = (self._row_numbers_R if shape.is_decode else parts["logit_rows"])[logit_rows]
        return StepInputs(ids_T, positions_T, state_rows_T, logit_rows_R, parts["sampled_rows"][logit_rows], paged)

    def pad(self) -> None:
        """Make every input padding: a step over padding changes only the counter. Work for `Device.run`."""
        for name in self.offsets:
            if name not in ("state", "counter"):
                self._parts[name].fill_(-1 if name == "positions" else 0)


class Staging:
    """Collects changes of a `StepMemory` until `flush`, which may be steps later if one failed. Engine thread only."""

    def __init__(self, device: Device, memory: Tensor, capacity: int = _CAPACITY) -> None:
        self._device, self._memory, self._capacity = device, memory, capacity
        # The first number is how many pairs follow; the pairs begin at a multiple of 16 bytes.
        shape = (_NUM_BUFFERS, _HEADER + capacity, 2)
        self._pinned = device.pinned(*shape, dtype=torch.int32)
        self._host: Integers = self._pinned.numpy()
        self._sent = torch.zeros(shape, dtype=torch.int32, device=device.torch_device)
        self._copied: list[torch.Event | None] = [None] * _NUM_BUFFERS
        self._next = 0
        self._single: dict[int, int] = {}
        self._runs: dict[int, Integers] = {}

    def write(self, index: int, value: int) -> None:
        """Set the number at `index` to `value`; replaces earlier changes of that number."""
        self._single[index] = value

    def write_all(self, values: dict[int, int]) -> None:
        """Write many single numbers, as {index: value}."""
        self._single.update(values)

    def write_run(self, index: int, values: Integers) -> None:
        """Write consecutive numbers from `index` on; a run replaces all earlier ones that begin at the same index."""
        self._runs[index] = values

    def drop_runs(self) -> bool:
        """Drop the runs, the inputs of a step that was not launched; return whether there were any."""
        had_runs = bool(self._runs)
        self._runs.clear()
        return had_runs

    def flush(self) -> None:
        """Send the changes, which are in the memory before work that is issued next."""
        if not (self._single or self._runs):
            return
        indices = [np.fromiter(self._single, np.int32, len(self._single))]
        values = [np.fromiter(self._single.values(), np.int32, len(self._single))]
        for index, run in self._runs.items():
            indices.append(np.arange(index, index + len(run), dtype=np.int32))
            values.append(run)
        changes = np.stack([np.concatenate(indices), np.concatenate(values)], axis=1)
        for begin in range(0, len(changes), self._capacity):
            self._send(changes[begin : begin + self._capacity])
        self._single, self._runs = {}, {}  # only now: changes that were not sent must be sent again

    def _send(self, changes: Integers) -> None:
        buffer = self._next
        self._next = (buffer + 1) % _NUM_BUFFERS
        copied = self._copied[buffer]
        if copied is not None:
            copied.synchronize()  # long done, but for a step with very many changes
        host, count = self._host[buffer], len(changes)
        host[0, 0] = count
        host[_HEADER : _HEADER + count] = changes
        self._device.run(partial(self._scatter, buffer, count))
        self._copied[buffer] = self._device.record_event()

    def _scatter(self, buffer: int, count: int) -> None:
        sent = self._sent[buffer]
        sent[: _HEADER + count].copy_(self._pinned[buffer, : _HEADER + count], non_blocking=True)
        scatter(sent[_HEADER:], sent[0], out=self._memory)
