"""The one door to an asynchronous device: streams, events, pinned memory, graphs. Tests put a fake there.

Work is issued in order to one compute stream and runs some time later. What a step has drawn is fetched on a second
stream, beside the next step. No caller touches a stream: it hands over what is to be done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Work = Callable[[], object]
"""Issues operations to the stream that is current when it is called; must not wait for the device."""


class Event(Protocol):
    """A place in the order of the compute stream, or of what is fetched."""

    def synchronize(self) -> None:
        """Wait until all work before it is done, without the interpreter's lock.

        Raises:
            RuntimeError: that work failed on the device.
        """

    def seconds_since(self, earlier: Event) -> float:
        """Return the time on the device between two timed events that are done."""


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Issue it again, over the same addresses. Call it through `Device.run`."""


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
        """Copy `source` to pinned `target` after all work issued so far, beside later work; return when it is there.

        Later work must leave `source` alone until then.
        """

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return zeros in host memory that copies need not wait for."""

    def pin(self, tensor: Tensor) -> None:
        """Lock a tensor of the host in its place, where kernels may then read and write it, for as long as it lives.

        Raises:
            RuntimeError: the system or the driver refuses.
        """

    def capture(self, work: Work) -> Graph:
        """Return `work` as a graph; nothing is computed. It must have been run before, and allocate nothing.

        Raises:
            RuntimeError: the work cannot be captured.
        """

    def memory(self) -> tuple[int, int]:
        """Return the bytes that are free, with what the allocator keeps for nothing given back, and those there are."""

    def synchronize(self) -> None:
        """Wait until all work is done."""


class CudaEvent:
    """See Event."""

    def __init__(self, stream: torch.cuda.Stream, *, is_timed: bool) -> None:
        # Not blocking: a wait that sleeps wakes 50 us late, a tenth of a small model's step.
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
        """Let `stream` go on only after this event."""
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
        once, and on one stream none do.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._compute):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:  # a stream that stays in capture could do nothing else any more
                    graph.capture_end()
        except BaseException:
            # The allocator may still be recording for this graph: neither it nor its pool can be used or given up.
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
