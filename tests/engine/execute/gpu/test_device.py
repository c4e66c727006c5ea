"""The calls of `Device` to torch.cuda and their order; a recorder replaces the module."""

from __future__ import annotations

import gc
import inspect
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from app.engine.execute.gpu import device as devices
from app.engine.execute.gpu.device import Device
from app.engine.execute.gpu.dry_run import DryDevice
from app.kernels.triton import dependent


class CudaRecorder:
    """Replaces torch.cuda and records calls; `current` is the current stream."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.num_streams = 0
        self.num_events = 0
        self.are_blocking: set[bool] = set()
        self.current = "default"
        self.products = SimpleNamespace()

    def Stream(self, place: object) -> SimpleNamespace:  # noqa: N802
        self.num_streams += 1
        name = ("copies", "compute")[self.num_streams % 2]
        return SimpleNamespace(name=name, wait_event=lambda event: self.calls.append(f"{name} waits for {event.name}"))

    def Event(self, *, enable_timing: bool, blocking: bool) -> SimpleNamespace:  # noqa: N802
        self.num_events += 1
        self.are_blocking.add(blocking)
        name = f"event {self.num_events}"
        return SimpleNamespace(
            name=name,
            time=float(self.num_events),
            record=lambda stream: self.calls.append(f"{name} on {stream.name}"),
            synchronize=lambda: self.calls.append(f"wait for {name}"),
            elapsed_time=lambda later: 1000.0 * (later.time - float(name.split()[1])),
        )

    @contextmanager
    def stream(self, stream: SimpleNamespace):
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    def CUDAGraph(self) -> SimpleNamespace:  # noqa: N802
        def begin(**how: object) -> None:
            self.calls.append(f"capture begins on {self.current}: {how}")

        return SimpleNamespace(
            capture_begin=begin, capture_end=lambda: self.calls.append("capture ends"), replay=lambda: None
        )

    def get_device_properties(self, place: object) -> SimpleNamespace:
        return SimpleNamespace(major=9, minor=0, multi_processor_count=132)

    def issue(self, what: str) -> None:
        """Record work and the stream it is issued to."""
        self.calls.append(f"{what} on {self.current}")

    set_device = synchronize = empty_cache = staticmethod(lambda *given: None)
    graph_pool_handle = staticmethod(lambda: "pool")
    mem_get_info = staticmethod(lambda place: (60, 100))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaRecorder:
    recorder = CudaRecorder()
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=recorder.products))
    fake_torch = SimpleNamespace(
        cuda=recorder, device=torch.device, zeros=torch.zeros, Event=torch.Event, backends=backends
    )
    monkeypatch.setattr(devices, "torch", fake_torch)
    return recorder


class RecordedTensor:
    """A tensor that records the stream of copies to it."""

    def __init__(self, cuda: CudaRecorder) -> None:
        self.cuda = cuda

    def copy_(self, source: object, *, non_blocking: bool) -> None:
        assert non_blocking
        self.cuda.issue("copy")


def test_work_and_events_go_to_the_compute_stream(cuda: CudaRecorder):
    device = Device()
    device.run(lambda: cuda.issue("step"))
    begin = device.record_event()
    end = device.record_event()
    end.synchronize()
    assert cuda.calls == ["step on compute", "event 1 on compute", "event 2 on compute", "wait for event 2"]
    assert begin.elapsed_time(end) == 1000.0 and device.num_processors == 132 and device.capability == (9, 0)


@pytest.mark.parametrize(
    ("capability", "is_wanted", "is_dependent"),
    [((9, 0), True, True), ((12, 0), True, True), ((9, 0), False, False), ((8, 9), True, False)],
)
def test_kernels_are_launched_dependently_if_the_setting_and_the_gpu_allow_it(
    cuda: CudaRecorder, monkeypatch: pytest.MonkeyPatch, capability, is_wanted, is_dependent
):
    monkeypatch.setattr(dependent, "is_interpreting", lambda: False)
    properties = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=132)
    monkeypatch.setattr(cuda, "get_device_properties", lambda place: properties)
    seen = []

    def work() -> None:
        seen.append(dependent.launch_options()["IS_DEPENDENT"])

    for device in (
        Device(dependent_launches=is_wanted),
        DryDevice(capability, 132, dependent_launches=is_wanted),
    ):
        device.run(work)
        device.capture(work)
    assert seen == [is_dependent] * 4
    work()
    assert not seen[-1]


def test_a_fetch_waits_for_one_event_only_and_has_one_end(cuda: CudaRecorder):
    device = Device()
    end = device.fetch([(None, RecordedTensor(cuda))] * 2, after=device.record_event())
    end.synchronize()
    assert cuda.calls == [
        "event 1 on compute", "copies waits for event 1", "copy on copies", "copy on copies", "event 2 on copies",
        "wait for event 2",
    ]  # fmt: skip


def test_a_capture_is_thread_local_and_uses_one_pool(cuda: CudaRecorder):
    device = Device()
    device.capture(lambda: cuda.issue("step"))
    how = "{'pool': 'pool', 'capture_error_mode': 'thread_local'}"
    assert cuda.calls == [f"capture begins on compute: {how}", "step on compute", "capture ends"]


def test_a_failed_capture_ends(cuda: CudaRecorder):
    device = Device()

    def fail() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        device.capture(fail)
    assert cuda.calls[-1] == "capture ends" and cuda.current == "default"


def test_the_next_capture_after_a_failed_one_has_a_new_pool(cuda: CudaRecorder, monkeypatch: pytest.MonkeyPatch):
    pools = iter(("first", "second"))
    monkeypatch.setattr(cuda, "graph_pool_handle", lambda: next(pools))
    device = Device()
    with pytest.raises(ZeroDivisionError):
        device.capture(lambda: 1 // 0)
    device.capture(lambda: None)
    begins = [call for call in cuda.calls if "capture begins" in call]
    assert "'first'" in begins[0] and "'second'" in begins[1]


@pytest.mark.parametrize(("cores", "sleeps"), [(1, True), (4, True), (5, False), (64, False)])
def test_where_cores_are_few_a_wait_for_the_device_sleeps(cuda: CudaRecorder, monkeypatch, cores: int, sleeps: bool):
    monkeypatch.setattr(devices, "num_cores", lambda: cores)
    device = Device()
    device.fetch([(None, RecordedTensor(cuda))], after=device.record_event())
    assert cuda.are_blocking == {sleeps}


def test_partial_sums_of_products_are_not_rounded(cuda: CudaRecorder):
    Device()
    assert set(vars(cuda.products).values()) == {False} and len(vars(cuda.products)) == 2
    assert all(hasattr(torch.backends.cuda.matmul, name) for name in vars(cuda.products))


def test_no_garbage_is_collected_during_a_capture_and_all_of_it_before_the_first(cuda: CudaRecorder, monkeypatch):
    collections: list[bool] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(gc.isenabled()))
    device, seen = Device(), []
    for _ in range(2):
        device.capture(lambda: seen.append(gc.isenabled()))
    assert seen == [False, False] and collections == [True] and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        device.capture(lambda: 1 // 0)
    assert gc.isenabled()


class Runtime:
    """A CUDA runtime that registers host memory, or returns the error `code`."""

    def __init__(self, code: int) -> None:
        self.code, self.registered = code, dict[int, int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        if self.code == 0:
            self.registered[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        return self.registered.pop(address)


def test_host_memory_is_pinned_until_it_is_freed(cuda: CudaRecorder, monkeypatch: pytest.MonkeyPatch):
    runtime = Runtime(0)
    monkeypatch.setattr(cuda, "cudart", lambda: runtime, raising=False)
    memory = torch.zeros(100)
    Device().pin(memory)
    assert list(runtime.registered.values()) == [400]
    del memory
    assert not runtime.registered
    monkeypatch.setattr(cuda, "cudart", lambda: Runtime(2), raising=False)
    with pytest.raises(RuntimeError, match="cannot be pinned: out of memory"):
        Device().pin(torch.zeros(100))


def test_memory_is_that_of_the_driver(cuda: CudaRecorder):
    assert Device().memory() == (60, 100)


def test_torch_has_the_recorded_functions():
    """The names and arguments that the recorder assumes."""
    begin = inspect.signature(torch.cuda.CUDAGraph.capture_begin).parameters
    assert {"pool", "capture_error_mode"} <= set(begin)
    for name in ("graph_pool_handle", "set_device", "synchronize", "empty_cache", "mem_get_info", "stream"):
        assert callable(getattr(torch.cuda, name))
    assert {"enable_timing", "blocking"} <= set(inspect.signature(torch.cuda.Event.__new__).parameters)
    for name in ("record", "synchronize", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
