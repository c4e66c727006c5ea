"""One compute thread: results do not depend on it, and the machine may be crowded."""

import os
from collections.abc import Iterator

import pytest
import torch

from app.kernels.cpu import compiling


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels with the flags in KERNEL_FLAGS too (see `make kernels`); they get a key of their own."""
    compiling.FLAGS += tuple(os.environ.get("KERNEL_FLAGS", "").split())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
