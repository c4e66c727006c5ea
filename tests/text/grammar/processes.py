"""What tests ask the system about processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

HANG_S = 60.0


def children_of(pid: int) -> list[int]:
    """The ids of a process's children."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def num_descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for a state, for as long as a busy machine may take."""
    deadline = time.monotonic() + HANG_S
    while not is_true():
        assert time.monotonic() < deadline, "the state is never reached"
        time.sleep(0.002)
