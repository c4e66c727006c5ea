"""A device that computes nothing: each step ends at its time, and each call costs the host what CUDA's would.

Steps follow each other in order; a step begins when it is issued or when the one before it ends. A thread that waits
sleeps without the interpreter's lock. So all of the host's work is real, but for the calls of the driver.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from app.engine.execute.gpu.device import Copy, Work
from app.engine.execute.gpu.graphs import DeviceStep
from app.engine.execute.gpu.shapes import StepShape
from app.engine.schedule.step_plan import StepPlan
from app.runtime.clock import monotonic

THREAD = "quire-device"
"""The name that the system shows of the thread that made a device: the engine thread, offline the main one."""

TOTAL_BYTES, FREE_BYTES = 141 << 30, 139 << 30
COPY_S = 10e-6
_PR_SET_NAME, _PR_SET_TIMERSLACK = 15, 29
_MIN_RELEASED_BYTES = 6 << 10  # of fewer bytes zlib computes the checksum without giving the lock away


class Call(NamedTuple):
    """Microseconds that a call takes from the host: of Python, with the lock, and of the driver, without it."""

    held_us: float
    released_us: float


# Assumed: what such calls take from Python on a server's CPU.
EVENT = Call(2, 2)  # make and record it
WAIT = Call(1, 1)  # of a stream or the host for an event, without the waiting itself
COPY = Call(8, 5)
REPLAY = Call(6, 20)  # of a graph of some 280 nodes
SCATTER = Call(35, 8)  # a copy and a kernel that Triton launches


class PacedEvent:
    """A point of time on the device; `due` on the clock of `monotonic`."""

    def __init__(self, device: PacedDevice, due: float) -> None:
        self._device, self.due = device, due

    def synchronize(self) -> None:
        """Sleep until then, without the lock."""
        self._device.spend(WAIT)
        left = self.due - monotonic()
        if left > 0:
            time.sleep(left)

    def elapsed_time(self, later: PacedEvent) -> float:
        """Return the milliseconds until another event."""
        return 1000 * (later.due - self.due)


class PacedGraph:
    """The step of a shape; `replay` is work for `PacedDevice.run`."""

    def __init__(self, replay: Work) -> None:
        self.replay = replay


class PacedDevice:
    """In the place of `Device`; `step_s` tells how long a plan in its shape takes, None for a step over padding.

    Attributes:
        busy_s: seconds of all steps so far.
        num_steps: how many there were.
    """

    torch_device = torch.device("meta")  # has no memory
    capability = (9, 0)
    num_processors = 132

    def __init__(self, step_s: Callable[[StepShape, StepPlan | None], float], vocab_size: int) -> None:
        self._step_s = step_s
        self._plan: StepPlan | None = None
        self._free_at = 0.0
        self.busy_s, self.num_steps = 0.0, 0
        generator = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(256, vocab_size, (4096,), dtype=torch.int32, generator=generator)
        self._bytes = memoryview(bytes(1 << 18))
        self._bytes_per_us = self._measure_rate()
        system = ctypes.CDLL(None)
        system.prctl(_PR_SET_NAME, THREAD.encode(), 0, 0, 0)
        system.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # nanoseconds: sleeps end when they are meant to

    def expect(self, plan: StepPlan) -> None:
        """Take the time of `plan` for the step that is issued next."""
        self._plan = plan

    def run(self, work: Work) -> None:
        """Let a step take its time, and all other work none."""
        if isinstance(work, partial) and isinstance(getattr(work.func, "__self__", None), PacedDevice | DeviceStep):
            self._compute(work.args[0])
        else:
            self.spend(SCATTER)

    def record_event(self) -> PacedEvent:
        self.spend(EVENT)
        return PacedEvent(self, max(self._free_at, monotonic()))

    def fetch(self, copies: Sequence[Copy], after: PacedEvent) -> PacedEvent:
        """Let the copies take their time; targets for tokens get some."""
        for call in (WAIT, *(COPY for _ in copies), EVENT):
            self.spend(call)
        for _, target in copies:
            if target.dtype == torch.int32 and target.dim() == 1:
                target.copy_(self._tokens[: len(target)])
        return PacedEvent(self, max(after.due, monotonic()) + len(copies) * COPY_S)

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def pin(self, tensor: Tensor) -> None:
        """Do nothing."""

    def capture(self, work: Work) -> PacedGraph:
        assert isinstance(work, partial), "only steps are captured"
        return PacedGraph(partial(self._compute, work.args[0]))

    def memory(self) -> tuple[int, int]:
        return FREE_BYTES, TOTAL_BYTES

    def synchronize(self) -> None:
        PacedEvent(self, self._free_at).synchronize()

    def spend(self, call: Call) -> None:
        """Take a call's time from this thread."""
        end = time.perf_counter() + 1e-6 * call.held_us
        while time.perf_counter() < end:
            pass
        zlib.crc32(self._bytes[: max(_MIN_RELEASED_BYTES, int(call.released_us * self._bytes_per_us))])

    def _compute(self, shape: StepShape) -> None:
        self.spend(REPLAY)
        seconds, self._plan = self._step_s(shape, self._plan), None
        self._free_at = max(self._free_at, monotonic()) + seconds
        self.busy_s += seconds
        self.num_steps += 1

    def _measure_rate(self) -> float:
        """Return the bytes of a checksum that take a microsecond."""
        times = []
        for _ in range(5):
            began = time.perf_counter()
            zlib.crc32(self._bytes)
            times.append(time.perf_counter() - began)
        return len(self._bytes) / (1e6 * min(times))
