"""Rings of the sampled tokens of steps, which the host reads while later steps run.

The device counts its steps itself, for a captured step has no parameter for its number; so does the host, and both
write and read at the index of that number.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from app.engine.execute.gpu.device import Device
from app.engine.execute.gpu.memory import Staging, StepMemory
from app.engine.schedule.step_plan import SampleLogprobs
from app.kernels.triton.row_layout import MAX_LOGPROBS

RING_SIZE = 8
"""Steps whose samples are kept: more than can be in flight."""


class Rings(NamedTuple):
    """Samples of the newest steps; X: first the sampled token's, then the best ones'."""

    tokens_KR: Tensor
    logprobs_KRX: Tensor
    logprob_ids_KRX: Tensor  # the sampled token's rank, then the best ones' ids


class OutputRings:
    """The rings on the device and their copies in host memory. Engine thread only."""

    def __init__(self, device: Device, memory: StepMemory, staging: Staging, max_logit_rows: int) -> None:
        self._device, self._memory, self._staging = device, memory, staging
        shapes = ((max_logit_rows,), (max_logit_rows, 1 + MAX_LOGPROBS), (max_logit_rows, 1 + MAX_LOGPROBS))
        pairs = list(zip(shapes, (torch.int32, torch.float32, torch.int32), strict=True))
        self.on_device = Rings(
            *(torch.zeros(RING_SIZE, *shape, dtype=dtype, device=device.torch_device) for shape, dtype in pairs)
        )
        self._on_host = Rings(*(device.pinned(RING_SIZE, *shape, dtype=dtype) for shape, dtype in pairs))
        self._next = 0

    @property
    def num_bytes(self) -> int:
        """The bytes of the rings on the device."""
        return sum(int(ring.nbytes) for ring in self.on_device)

    def next_index(self) -> int:
        """Return the ring index of the step that is about to be issued; call `correct_counter` if it is not issued."""
        index = self._next
        self._next = (index + 1) % RING_SIZE
        return index

    def correct_counter(self) -> None:
        """Write the device's counter before the next step: it may have counted one step more or less than the host."""
        self._staging.write(self._memory.offsets["counter"], self._next)

    def fetch(self, index: int, num_samples: int, *, with_logprobs: bool) -> list[torch.Event]:
        """Begin to copy a step's samples, which can be read after the returned events."""
        rings = range(3 if with_logprobs else 1)
        return [
            self._device.fetch(self.on_device[ring][index, :num_samples], self._on_host[ring][index, :num_samples])
            for ring in rings
        ]

    def tokens(self, index: int, num_samples: int) -> list[int]:
        """Return the tokens that a step sampled."""
        token_ids: list[int] = self._on_host.tokens_KR[index, :num_samples].tolist()
        return token_ids

    def logprobs(self, index: int, sample: int, num_best: int) -> SampleLogprobs:
        """Return the log-probabilities of the sample with the number `sample` in its step."""
        (logprob, *best), (rank, *ids) = (
            ring[index, sample, : 1 + num_best].tolist()
            for ring in (self._on_host.logprobs_KRX, self._on_host.logprob_ids_KRX)
        )
        return SampleLogprobs(logprob, rank, tuple(ids), tuple(best))
