"""Tests that need a CUDA device, at most four minutes on an H200: `pytest -m gpu tests/gpu`.

On a machine without the packages of `make dev`: `python -m pytest -c tests/gpu/pytest.ini --rootdir=. tests/gpu`.
"""

from pathlib import Path

import pytest
import torch

from app.kernels.triton.interpreter import is_interpreting

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked, and skipped where there is no device."""
    assert not (torch.cuda.is_available() and is_interpreting()), "TRITON_INTERPRET is set: nothing would be proved"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device here"))
