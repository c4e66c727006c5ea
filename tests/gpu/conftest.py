"""Tests that need a CUDA device: `make gpu-1`, at most five minutes on an H200 with nothing compiled yet.

On a machine without the packages of `make dev`: `python -m pytest -c tests/gpu/pytest.ini --rootdir=. tests/gpu`.
Compiling takes most of that, so with pytest-xdist those that compile the same kernels share a process (`-n 10 --dist
loadgroup`), and find in its cache what the first of them has compiled. No test compiles anything for the CPU.
"""

from pathlib import Path

import pytest
import torch

from app.kernels.triton.interpreter import is_interpreting

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked, grouped by what it compiles, and skipped where there is no device."""
    assert not (torch.cuda.is_available() and is_interpreting()), "TRITON_INTERPRET is set: nothing would be proved"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.xdist_group(_compiled(item)))
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device here"))


def _compiled(item: pytest.Item) -> str:
    """What kernels a test compiles: those of its function, in its types and for its model."""
    params = getattr(item, "callspec", None)
    given = {} if params is None else params.params
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    return "-".join([name, *(str(given[key]) for key in ("name", "dtype", "deterministic", "heads") if key in given)])
