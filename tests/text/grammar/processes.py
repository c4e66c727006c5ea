"""What tests ask the system about processes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HANG_S = 60.0
SELECTABLE = 1024
"""`select` knows no descriptor from this number on."""


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


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have as many files open as this process may."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    os.close(next_one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Have so many files open, as a server with as many clients has, that new ones have numbers from SELECTABLE on."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * SELECTABLE, limits[1]), limits[1]))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < SELECTABLE:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
