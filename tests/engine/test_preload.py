"""Torch's libraries are loaded before torch is imported."""

import subprocess
import sys

import pytest

from app.engine import preload


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded on Linux only")
def test_the_libraries_are_loaded_before_torch_is_imported():
    code = (
        "import sys; from pathlib import Path; from app.engine.preload import preload_torch; preload_torch();"
        "assert 'torch' not in sys.modules; assert 'libtorch_cpu' in Path('/proc/self/maps').read_text();"
        "import torch; assert float(torch.ones(8, 8).mm(torch.ones(8, 8)).sum()) == 512"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_nothing_is_loaded_without_torch(monkeypatch):
    monkeypatch.setattr(preload, "find_spec", lambda name: None)
    monkeypatch.setattr(preload.ctypes, "CDLL", None)  # calling it would raise TypeError
    preload.preload_torch()


def test_a_missing_library_is_no_error(monkeypatch):
    class Elsewhere:
        origin = "/nowhere/torch/__init__.py"

    asked = []
    monkeypatch.setattr(preload, "find_spec", lambda name: asked.append(name) or Elsewhere)
    preload.preload_torch()
    assert asked == ["torch"]
