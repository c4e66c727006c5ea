"""Separate cores for the server and its clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

MAX_CLIENT_PROCESSES = 4


class Cores(NamedTuple):
    """The cores of the server and of each client process; empty if nothing can be pinned."""

    server: tuple[int, ...]
    clients: tuple[tuple[int, ...], ...]


def share_cores(available: Sequence[int]) -> Cores:
    """Give the server one core and each client process another; with one core all processes share it."""
    if len(available) < 2:
        return Cores((), ((),))
    return Cores((available[0],), tuple((core,) for core in available[1 : 1 + MAX_CLIENT_PROCESSES]))


def available_cores() -> list[int]:
    """Return the cores that this process may use; none if the system cannot pin."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(cores: Sequence[int]) -> None:
    """Pin this process and its later threads to `cores`; without cores do nothing."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
