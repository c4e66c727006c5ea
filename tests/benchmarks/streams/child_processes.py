"""Finds the processes that the benchmark `streams` has started."""

from pathlib import Path


def children(parent: int | str = "self") -> list[int]:
    """The running servers and clients that a process has started, in the order of their start."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return sorted(pid for pid in pids if b"benchmarks.streams" in _command_line(pid))


def _command_line(pid: int) -> bytes:
    """Return the command line of a process; that of one that has ended since it was listed is empty."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
