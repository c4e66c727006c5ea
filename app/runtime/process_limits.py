"""Limits that a process sets for itself: a child before it works on what a client has sent, and a server."""

from __future__ import annotations

import resource
import signal
from contextlib import suppress

from app.runtime.process_memory import memory_bytes


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
