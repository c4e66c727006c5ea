"""Where `auto` finds a GPU: the driver's files, or its library, in an environment that shows one, with torch for it."""

import ctypes

import pytest

from app.config import devices
from app.config.devices import CPU, CUDA, resolve_device


class Library:
    """The driver's library of a machine with so many GPUs; None: it does not start."""

    def __init__(self, num_gpus: int | None) -> None:
        self._num_gpus = num_gpus

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 100 if self._num_gpus is None else 0

    def cuDeviceGetCount(self, count) -> int:  # noqa: N802
        count._obj.value = self._num_gpus
        return 0


@pytest.fixture(name="machine", autouse=True)
def _machine(monkeypatch):
    """A machine with torch for GPUs and without the driver's library."""

    def missing(name: str):
        raise OSError("no such file")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", missing)


@pytest.mark.parametrize("file", ["proc/driver/nvidia/version", "dev/nvidiactl"])
def test_the_drivers_files_say_that_there_is_one(file, tmp_path):
    assert resolve_device("auto", tmp_path) == CPU
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    assert resolve_device("auto", tmp_path) == CUDA


@pytest.mark.parametrize(("num_gpus", "device"), [(1, CUDA), (0, CPU), (None, CPU)])
def test_where_there_are_no_files_its_library_is_asked(num_gpus, device, tmp_path, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(num_gpus))
    assert resolve_device("auto", tmp_path) == device


def test_a_gpu_that_is_hidden_or_that_torch_cannot_use_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resolve_device("auto", tmp_path) == CPU
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices, "_torch_has_cuda", lambda: False)
    assert resolve_device("auto", tmp_path) == CPU


def test_what_is_asked_for_is_not_looked_for(tmp_path):
    assert (resolve_device("cuda", tmp_path), resolve_device("cpu", tmp_path)) == (CUDA, CPU)
