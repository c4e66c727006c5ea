"""Tests that need a CUDA device: `make gpu-1`, at most five minutes on an H200 with nothing compiled yet.

On a machine without the packages of `make dev`: `python -m pytest -c tests/gpu/pytest.ini --rootdir=. tests/gpu`.
Compiling takes most of that, so with pytest-xdist (`-n 10`) tests that compile the same kernels share a process, and
what one process has compiled others find in Triton's cache. No test compiles anything for the CPU.
"""

import os
import re
from pathlib import Path

import pytest
import torch

from app.kernels.triton.interpreter import is_interpreting
from app.kernels.triton.specializations import fix_cache_keys

HERE = Path(__file__).parent
# Parameters of a test that are mere numbers: they choose no other kernels, or small ones.
NUMBERS = re.compile(r"(?<=[\[-])\d+-")


def pytest_configure() -> None:
    """Share out the processors, on which the expected values are computed, and what one process has compiled."""
    if torch.cuda.is_available():
        count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
        fix_cache_keys()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and skip them without a device."""
    assert not (torch.cuda.is_available() and is_interpreting()), (
        "TRITON_INTERPRET is set: the tests would not use the GPU"
    )
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a process all tests that differ in numbers alone. (Groups by mark do not work with every pytest.)"""
    from xdist.scheduler import LoadScopeScheduling

    class LoadKernelsScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return NUMBERS.sub("", nodeid)

    return LoadKernelsScheduling(config, log)
