"""A device that does its work on the CPU, as late as allowed, so that reading or overwriting too early is detected.

A graph is a list of the operations and launches of the captured work, with their arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from app.engine.execute.gpu.device import Copy, Work


class FakeEvent:
    """A position in the work queue of a device."""

    def __init__(self, device: FakeDevice, do: Callable[[], object] = lambda: None) -> None:
        self._device, self._do = device, do
        self.time: float | None = None

    def happen(self) -> None:
        """The device reaches the event."""
        if self.time is None:
            self._do()
            self._device.now += 1.0
            self.time = self._device.now

    def synchronize(self) -> None:
        """Do all issued work, also the work after this event."""
        self._device.check()
        self._device.num_waits += 1
        self._device.do_all()
        self.happen()

    def elapsed_time(self, later: FakeEvent) -> float:
        """Return the milliseconds until another event."""
        assert self.time is not None and later.time is not None
        return 1000.0 * (later.time - self.time)


class FakeGraph:
    """The captured calls."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self.calls = calls
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        for call in self.calls:
            call()


class FakeDevice:
    """A `Device`; `total` is its memory. The next captures raise `capture_errors`, all that comes raises `error`."""

    torch_device = torch.device("cpu")
    capability = (9, 0)
    num_processors = 4

    def __init__(self, total: int = 1 << 30) -> None:
        self.total = total
        self.now = 0.0
        self.num_waits = self.num_pinned_bytes = 0
        self.capture_errors: list[Exception] = []
        self.error: Exception | None = None
        self.graphs: list[FakeGraph] = []
        self._queue: deque[Work] = deque()
        self._is_working = False

    def run(self, work: Work) -> None:
        self.check()
        self._queue.append(work)

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self)
        self._queue.append(event.happen)
        return event

    def fetch(self, copies: Iterable[Copy], after: FakeEvent) -> FakeEvent:
        def copy() -> None:
            assert after.time is not None, "the event is among the work that was issued before"
            for source, target in copies:
                target.copy_(source)

        return FakeEvent(self, copy)

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def pin(self, tensor: Tensor) -> None:
        self.num_pinned_bytes += tensor.nbytes

    def capture(self, work: Work) -> FakeGraph:
        if self.capture_errors:
            raise self.capture_errors.pop(0)
        self.do_all()  # earlier work: not required on a GPU, but the recorder would see it
        recorder = _Recorder()
        with recorder:
            work()
        self.graphs.append(FakeGraph(recorder.calls))
        return self.graphs[-1]

    def memory(self) -> tuple[int, int]:
        return self.total // 2, self.total

    def synchronize(self) -> None:
        self.num_waits += 1
        self.do_all()

    def check(self) -> None:
        """Raise the error of a device that is broken."""
        if self.error is not None:
            raise self.error

    def do_all(self) -> None:
        """Do all issued work in order. Work that waits itself has no earlier work to wait for."""
        if self._is_working:
            return
        self._is_working = True
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            self._is_working = False


class _Recorder(TorchDispatchMode):
    """Records operations on existing memory and kernel launches; rejects operations that a capture does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []
        self._launch = InterpretedFunction.run

    def __enter__(self) -> _Recorder:
        recorder, launch = self, self._launch

        def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            recorder.calls.append(partial(launch, kernel, *args, grid=grid, warmup=warmup, **kwargs))

        InterpretedFunction.run = record
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        InterpretedFunction.run = self._launch
        super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        if not func._schema.is_mutable:
            raise RuntimeError(f"{func} would allocate, or wait for the device, in a captured step")
        self.calls.append(partial(func, *args, **kwargs))
        return kwargs.get("out", args[0])
