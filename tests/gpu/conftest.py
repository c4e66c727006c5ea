"""Tests that need a CUDA device, at most four minutes on an H200: `pytest -m gpu tests/gpu`.

On a machine without the packages of `make dev`: `python -m pytest -c tests/gpu/pytest.ini --rootdir=. tests/gpu`.
"""

from pathlib import Path

import pytest
import torch

from app.kernels.triton.interpreter import is_interpreting

HERE = Path(__file__).parent


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
