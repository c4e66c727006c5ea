"""The only interface to an asynchronous device: streams, events, pinned memory, graphs. Tests replace it by a fake.

Work is issued in order to one compute stream and runs some time later. A step's samples are fetched on a second stream,
beside the next step. Callers use no streams: they pass callables as work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], object]
"""A callable that issues operations to the current stream; it must not wait for the device."""


class Event(Protocol):
    """A point in the order of the compute stream, or of the fetches."""

    def synchronize(self) -> None:
        """Wait until all work before it is done, without the interpreter's lock.

        Raises:
            RuntimeError: that work failed on the device.
        """

    def seconds_since(self, earlier: Event) -> float:
        """Return the time on the device between two timed events that are done."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Issue the captured work again, over the same addresses. Call `replay` through `Device.run`."""


class Device(Protocol):
    """One device. Engine thread only; nothing here waits, but for `synchronize`."""

    place: torch.device
    capability: tuple[int, int]
    num_processors: int  # streaming multiprocessors

    def run(self, work: Work) -> None:
        """Issue `work` to the compute stream."""

    def mark(self) -> Event:
        """Return a timed event after all work issued so far."""

    def fetch(self, source: Tensor, target: Tensor) -> Event:
        """Copy `source` to pinned `target` after all work issued so far, beside later work; return the copy's end.

        Later work must not write to `source` until then.
        """

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return zeros in pinned host memory, for asynchronous copies."""

    def pin(self, tensor: Tensor) -> None:
        """Pin a tensor in host memory for its lifetime, so that kernels may read and write it.

        Raises:
            RuntimeError: the system or the driver refuses.
        """

    def capture(self, work: Work) -> Graph:
        """Return `work` as a graph, without computing. The work must have been run before, and allocate nothing.

        Raises:
            RuntimeError: the work cannot be captured.
        """

    def memory(self) -> tuple[int, int]:
        """Return the free bytes, after the allocator has released its unused ones, and the total bytes."""

    def synchronize(self) -> None:
        """Wait until all work is done."""


class CudaEvent:
    """See Event."""

    def __init__(self, stream: torch.cuda.Stream, *, is_timed: bool) -> None:
        # Not blocking: a sleeping wait wakes 50 us late, a tenth of a small model's step.
        self._event: torch.Event = torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def synchronize(self) -> None:
        """See Event.synchronize."""
        self._event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        """See Event.seconds_since."""
        assert isinstance(earlier, CudaEvent)
        return float(earlier._event.elapsed_time(self._event)) / 1000

    def hold(self, stream: torch.cuda.Stream) -> None:
        """Let `stream` wait for this event."""
        stream.wait_event(self._event)


class CudaDevice:
    """A GPU through torch.cuda. See Device."""

    def __init__(self, index: int = 0) -> None:
        self.place = torch.device("cuda", index)
        torch.cuda.set_device(self.place)
        properties = torch.cuda.get_device_properties(self.place)
        self.capability = (properties.major, properties.minor)
        self.num_processors = properties.multi_processor_count
        self._compute, self._copies = (torch.cuda.Stream(self.place) for _ in range(2))  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._broken: list[torch.cuda.CUDAGraph] = []

    def run(self, work: Work) -> None:
        """See Device.run."""
        with torch.cuda.stream(self._compute):
            work()

    def mark(self) -> Event:
        """See Device.mark."""
        return CudaEvent(self._compute, is_timed=True)

    def fetch(self, source: Tensor, target: Tensor) -> Event:
        """See Device.fetch."""
        CudaEvent(self._compute, is_timed=False).hold(self._copies)
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
        return CudaEvent(self._copies, is_timed=False)

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """See Device.pinned."""
        return torch.zeros(*shape, dtype=dtype, pin_memory=True)

    def pin(self, tensor: Tensor) -> None:
        """See Device.pin; torch's own pinned memory would be rounded up to a power of two."""
        runtime, address = torch.cuda.cudart(), tensor.data_ptr()  # type: ignore[no-untyped-call]
        if tensor.nbytes and int(runtime.cudaHostRegister(address, tensor.nbytes, 0)) != 0:
            raise RuntimeError(f"{tensor.nbytes >> 20} MiB of host memory cannot be pinned: out of memory")
        weakref.finalize(tensor, runtime.cudaHostUnregister, address).atexit = False

    def capture(self, work: Work) -> Graph:
        """See Device.capture.

        Other threads may use the device meanwhile (`thread_local`); the graphs share one pool, so no two may run at
        once, which one stream ensures.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._compute):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:  # a stream that stays in capture could run nothing else
                    graph.capture_end()
        except BaseException:
            # The allocator may still be recording for this graph: neither it nor its pool can be used or released.
            self._broken.append(graph)
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return graph

    def memory(self) -> tuple[int, int]:
        """See Device.memory."""
        self.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.place)

    def synchronize(self) -> None:
        """See Device.synchronize."""
        torch.cuda.synchronize(self.place)
