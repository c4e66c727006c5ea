"""The machine's limits are measured with native kernels, or with torch without them."""

import pytest
import torch

from app.kernels.cpu.library import load_library
from benchmarks.cpu import probe as module
from benchmarks.cpu.probe import probe


@pytest.mark.parametrize("is_native", [True, False])
def test_the_machine_is_measured_with_and_without_native_kernels(is_native, monkeypatch):
    if is_native and load_library() is None:
        pytest.skip("no native kernels here")
    monkeypatch.setattr(module, "PROBE_S", 1e-9)
    monkeypatch.setattr(module, "MATRIX", 64)
    monkeypatch.setattr(module, "ROUNDS", 1000)
    if not is_native:
        monkeypatch.setattr(module, "load_library", lambda: None)
    threads = torch.get_num_threads()
    found = probe(1 << 20)
    assert min(found[:3]) > 0
    assert ("native" in found.how) == is_native
    assert torch.get_num_threads() == threads
