"""One compute thread: results do not depend on the number, and other tests may use the machine."""

import os
from collections.abc import Iterator

import pytest
import torch

from app.kernels.cpu import compiling


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels also with the flags in KERNEL_FLAGS (see `make kernels`); they have another key."""
    compiling.FLAGS += tuple(os.environ.get("KERNEL_FLAGS", "").split())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
