"""A scripted device names the thread that makes it: here the tests' own, which gets its name back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

NAME = Path("/proc/thread-self/comm")


@pytest.fixture(autouse=True)
def _own_name() -> Iterator[None]:
    name = NAME.read_text()
    yield
    NAME.write_text(name)
