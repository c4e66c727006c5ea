"""The memory of this process and of its children, as Linux tells it."""

from __future__ import annotations

import resource
from pathlib import Path


def family_bytes(pid: int) -> int:
    """Return the memory of a process and of those that it has started, what they share counted once; 0 if unknown."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return sum(_proportional_bytes(each) for each in (str(pid), *children))


def _proportional_bytes(pid: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def memory_bytes() -> int:
    """Return the bytes of this process's address space; 0 where the system does not tell."""
    return _statm_bytes(0)


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not tell."""
    return _statm_bytes(1)


def _statm_bytes(field: int) -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[field])
    except OSError:
        return 0
    return pages * resource.getpagesize()
