"""The only interface to an asynchronous device: streams, events, pinned memory, graphs. Tests replace it by a fake.

Work is issued in order to one compute stream and runs some time later. A step's samples are fetched on a second stream,
beside the next step. Callers use no streams: they pass callables as work.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from app.config.devices import MIN_DEPENDENT_CAPABILITY
from app.kernels.triton.dependent import launches
from app.runtime.cores import num_cores
from app.runtime.gc_tuning import without_gc

Work = Callable[[], object]
"""A callable that issues operations to the current stream; it must not wait for the device."""
Copy = tuple[Tensor, Tensor]
"""A source on the device, and a target in pinned memory."""

# A thread that waits for the device in a loop takes a core, and on machines with so few the event loop needs that core.
# A sleeping one wakes 50 us late, a tenth of a small model's step.
FEW_CORES = 4


class Device:
    """A GPU through torch.cuda. Engine thread only; only `memory` and `synchronize` wait for the device.

    Kernels are launched dependently if `dependent_launches` and the GPU allow it.
    """

    def __init__(self, *, dependent_launches: bool = True) -> None:
        self.torch_device = device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        properties = torch.cuda.get_device_properties(device)
        self.capability = (properties.major, properties.minor)
        self.num_processors = properties.multi_processor_count  # streaming multiprocessors
        self._is_dependent = dependent_launches and self.capability >= MIN_DEPENDENT_CAPABILITY
        self._compute, self._copies = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._broken: list[torch.cuda.CUDAGraph] = []
        self._has_captured = False
        self._sleeps = num_cores() <= FEW_CORES
        # Partial sums of a product that cuBLAS divides along its inner dimension stay float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def run(self, work: Work) -> None:
        """Issue `work`, which may be the `replay` of a graph, to the compute stream."""
        with torch.cuda.stream(self._compute), launches(is_dependent=self._is_dependent):
            work()

    def record_event(self) -> torch.Event:
        """Return a timed event after all work issued so far; its `synchronize` raises RuntimeError if work failed."""
        return self._record(self._compute, is_timed=True)

    def fetch(self, copies: Iterable[Copy], after: torch.Event) -> torch.Event:
        """Copy sources to targets after an event of `record_event`, beside later work; return the end of the copies.

        Later work must not write to the sources until then.
        """
        self._copies.wait_event(after)
        with torch.cuda.stream(self._copies):
            for source, target in copies:
                target.copy_(source, non_blocking=True)
        return self._record(self._copies)

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return zeros in pinned host memory, for asynchronous copies."""
        return torch.zeros(*shape, dtype=dtype, pin_memory=True)

    def pin(self, tensor: Tensor) -> None:
        """Pin a tensor in host memory for its lifetime, so that kernels may read and write it.

        torch's own pinned memory would be rounded up to a power of two.

        Raises:
            RuntimeError: the system or the driver rejects.
        """
        runtime, address = torch.cuda.cudart(), tensor.data_ptr()  # type: ignore[no-untyped-call]
        if tensor.nbytes and int(runtime.cudaHostRegister(address, tensor.nbytes, 0)) != 0:
            raise RuntimeError(f"{tensor.nbytes >> 20} MiB of host memory cannot be pinned: out of memory")
        # The pin is of the tensor's memory, which must not be freed while it is pinned: only its end says when that is.
        weakref.finalize(tensor, runtime.cudaHostUnregister, address).atexit = False

    def capture(self, work: Work) -> torch.cuda.CUDAGraph:
        """Return `work` as a graph, without computing. The work must have been run before, and allocate nothing.

        Other threads may use the device meanwhile (`thread_local`); the graphs share one pool, so no two may run at
        once, which one stream ensures. No garbage is collected: freeing a tensor or a graph would end the capture.

        Raises:
            RuntimeError: the work cannot be captured.
        """
        if not self._has_captured:  # what is garbage already is freed now, not while later captures are made
            self._has_captured = True
            gc.collect()
        graph = torch.cuda.CUDAGraph()
        try:
            with without_gc(), torch.cuda.stream(self._compute), launches(is_dependent=self._is_dependent):
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
        """Return the free bytes, after the allocator has released its unused ones, and the total bytes."""
        self.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch_device)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        torch.cuda.synchronize(self.torch_device)

    def _record(self, stream: torch.cuda.Stream, *, is_timed: bool = False) -> torch.Event:
        event: torch.Event = torch.cuda.Event(  # type: ignore[no-untyped-call]
            enable_timing=is_timed, blocking=self._sleeps
        )
        event.record(stream)
        return event
