"""Writes changes to the device's memory: gathered on the host, sent by one copy and scattered by one kernel."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from app.engine.execute.gpu.device import Device
from app.kernels.triton.rows import scatter

Integers = npt.NDArray[np.int32]

_NUM_BUFFERS = 8
_HEADER = 2
_CAPACITY = 16384  # changes that go in one copy; a step with more (a long context's block table) takes several


class Staging:
    """Collects changes until `flush`, which may be steps later if one failed before. Engine thread only."""

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
