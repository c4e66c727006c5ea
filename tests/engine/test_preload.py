"""Torch's libraries are loaded before torch is imported."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from app.engine import preload


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded on Linux only")
def test_the_libraries_are_loaded_before_torch_is_imported():
    code = (
        "import sys; from pathlib import Path; from app.engine.preload import preload_torch; preload_torch();"
        "assert 'torch' not in sys.modules; assert 'libtorch_cpu' in Path('/proc/self/maps').read_text();"
        "import torch; assert float(torch.ones(8, 8).mm(torch.ones(8, 8)).sum()) == 512"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
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


@pytest.mark.parametrize("given", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", None])
def test_torchs_threads_sleep_soon_unless_the_environment_says_how_they_wait(monkeypatch, given):
    environ = {} if given is None else {given: "set by the user"}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(preload.ctypes, "CDLL", lambda name: SimpleNamespace(dlopen=lambda *args: None))
    preload.preload_torch()
    assert environ == {given or "GOMP_SPINCOUNT": "set by the user" if given else str(preload.SPIN_COUNT)}


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded on Linux only")
def test_the_libraries_read_how_long_threads_spin(monkeypatch):
    code = "from app.engine.preload import preload_torch; preload_torch(); import torch; torch.ones(9)"
    environ = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environ |= {"OMP_DISPLAY_ENV": "verbose"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert f"GOMP_SPINCOUNT = '{preload.SPIN_COUNT}'" in result.stderr


def test_it_begins_on_a_thread_that_the_end_of_the_process_waits_for(monkeypatch):
    monkeypatch.setattr(os, "environ", environ := {})
    called = []
    monkeypatch.setattr(preload, "preload_torch", lambda: called.append((threading.current_thread(), dict(environ))))
    preload.begin_preload()
    for thread in threading.enumerate():
        if thread.name == "quire-preload":
            thread.join()
    [(thread, seen)] = called
    assert not thread.daemon and thread is not threading.current_thread()
    assert seen == {"GOMP_SPINCOUNT": str(preload.SPIN_COUNT)}, "set before other threads read it"


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded on Linux only")
def test_a_process_that_ends_meanwhile_ends_well():
    code = "import sys; from app.engine.preload import begin_preload; begin_preload(); sys.exit(2)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (result.returncode, result.stderr) == (2, "")
