"""Times of the threads of a process, also of another one. Linux."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ThreadTime(NamedTuple):
    """A thread as the system knows it.

    Attributes:
        name: its name, of which the system keeps 15 characters.
        is_first: whether the process began with it: in a server the event loop's.
        running_s, waited_s: the seconds that it has run, and those that it was ready to run and had no core.
    """

    name: str
    is_first: bool
    running_s: float
    waited_s: float


def threads_of(pid: int) -> Iterator[ThreadTime]:
    """Yield the threads of a process; of one that runs, the time may be a few milliseconds old."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            running, waited, *_ = (int(number) / 1e9 for number in (task / "schedstat").read_text().split())
            name = (task / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        yield ThreadTime(name, task.name == str(pid), running, waited)
