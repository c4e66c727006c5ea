"""Finds the processes that the benchmark `streams` has started."""

from pathlib import Path


def children(parent: int | str = "self") -> list[int]:
    """The running servers and clients that a process has started, in the order of their start."""
    tasks = Path(f"/proc/{parent}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return sorted(pid for pid in pids if b"benchmarks.streams" in Path(f"/proc/{pid}/cmdline").read_bytes())
