"""Limits that a process sets for itself: a child before it works on what a client has sent, and a server; and what
children take."""

from __future__ import annotations

import resource
import signal
from contextlib import suppress
from pathlib import Path


def raise_file_limit() -> None:
    """Raise the limit of open files (one per connection) to the system's hard limit, if there is one."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit_process(*, cpu_s: float, more_bytes: int) -> None:
    """End this process after `cpu_s` more seconds of processor time; let it have `more_bytes` more memory than now.

    The signal of the timer, SIGPROF, ends a process that does not handle it. Allocations beyond the memory fail, which
    ends a process whose libraries do not expect it.
    """
    limit_memory(more_bytes)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def limit_memory(more_bytes: int) -> None:
    """Let this process have `more_bytes` more memory than now, and write no core file when it ends at the limit.

    Where the system does not tell how much it has now (macOS) its memory is not limited.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if num_bytes := memory_bytes():
        most = num_bytes + more_bytes
        with suppress(ValueError, OSError):  # the system has a lower limit already
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


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
