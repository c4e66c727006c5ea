"""Which cores the server and its clients have, so that they do not take them from each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

MAX_CLIENT_PROCESSES = 4


class Cores(NamedTuple):
    """The server's core and those of each client process; empty where nothing can be pinned."""

    server: tuple[int, ...]
    clients: tuple[tuple[int, ...], ...]


def share_cores(available: Sequence[int]) -> Cores:
    """Give the server one core and each client process another; with one core everybody shares it."""
    if len(available) < 2:
        return Cores((), ((),))
    return Cores((available[0],), tuple((core,) for core in available[1 : 1 + MAX_CLIENT_PROCESSES]))


def available_cores() -> list[int]:
    """Return the cores that this process may use; none where the system cannot pin."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(cores: Sequence[int]) -> None:
    """Keep this process and the threads it will make on `cores`; nothing if there are none."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
