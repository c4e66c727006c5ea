"""Rings of the sampled tokens of steps, which the host reads while later steps run.

The device counts its steps itself, for a captured step has no parameter for its number; so does the host, and both
write and read at the index of that number.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from app.engine.execute.gpu.device import Device, Event
from app.engine.execute.gpu.memory import StepMemory
from app.engine.execute.gpu.staging import Staging
from app.engine.schedule.step_plan import SampleLogprobs
from app.kernels.triton.row_layout import MAX_LOGPROBS

NUM_PLACES = 8
"""Steps whose samples are kept: more than can be in flight."""


class Rings(NamedTuple):
    """Samples of the newest steps; X: first the sampled token's, then the best ones'."""

    tokens_KR: Tensor
    logprobs_KRX: Tensor
    logprob_ids_KRX: Tensor  # the sampled token's rank, then the best ones' ids


class OutputRings:
    """The rings on the device and their copies in host memory. Engine thread only."""

    def __init__(self, device: Device, memory: StepMemory, staging: Staging, num_draws: int) -> None:
        self._device, self._memory, self._staging = device, memory, staging
        shapes = ((num_draws,), (num_draws, 1 + MAX_LOGPROBS), (num_draws, 1 + MAX_LOGPROBS))
        dtypes = (torch.int32, torch.float32, torch.int32)
        pairs = list(zip(shapes, dtypes, strict=True))
        self.on_device = Rings(
            *(torch.zeros(NUM_PLACES, *shape, dtype=dtype, device=device.place) for shape, dtype in pairs)
        )
        self._on_host = Rings(*(device.pinned(NUM_PLACES, *shape, dtype=dtype) for shape, dtype in pairs))
        self._next = 0
        self._is_lost = False

    @property
    def num_bytes(self) -> int:
        """The bytes of the rings on the device."""
        return sum(int(ring.nbytes) for ring in self.on_device)

    def expect(self) -> int:
        """Return the index of the step that is about to be issued; call `lose` if it is not issued."""
        if self._is_lost:
            self._staging.write(self._memory.places["counter"], self._next)
            self._is_lost = False
        place = self._next
        self._next = (place + 1) % NUM_PLACES
        return place

    def lose(self) -> None:
        """Note that the device may have counted one step more or less than the host."""
        self._is_lost = True

    def fetch(self, place: int, num_draws: int, *, with_logprobs: bool) -> list[Event]:
        """Begin to copy a step's samples, which can be read after the returned events."""
        rings = range(3 if with_logprobs else 1)
        return [
            self._device.fetch(self.on_device[ring][place, :num_draws], self._on_host[ring][place, :num_draws])
            for ring in rings
        ]

    def tokens(self, place: int, num_draws: int) -> list[int]:
        """Return the tokens that a step sampled."""
        token_ids: list[int] = self._on_host.tokens_KR[place, :num_draws].tolist()
        return token_ids

    def logprobs(self, place: int, draw: int, num_best: int) -> SampleLogprobs:
        """Return the log-probabilities of one sample."""
        (chosen, *best), (rank, *ids) = (
            ring[place, draw, : 1 + num_best].tolist()
            for ring in (self._on_host.logprobs_KRX, self._on_host.logprob_ids_KRX)
        )
        return SampleLogprobs(chosen, rank, tuple(ids), tuple(best))
