"""The end of a row of the last round: its memory is read until it is back, then SIGTERM ends the server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.isolation.memory import Growth, tree
from benchmarks.isolation.row import LOOK_EVERY_S, MAX_GROWTH_BYTES
from benchmarks.limits import limits
from benchmarks.server_process import ServerProcess

BACK_S = 60.0
EXIT_S = 34.0  # the default of --drain-timeout, and 4 s
CHILDREN_S = 2.0


class Ending(NamedTuple):
    """What `Row` says of the end of a server, by the same names."""

    kept_bytes: int
    back_s: float
    exit_s: float


def end(server: ServerProcess, growth: Growth) -> Ending:
    """Wait until a server's memory is back, and end it. Blocks.

    Raises:
        RuntimeError: it ends by itself, takes ever more memory, does not end on SIGTERM, or leaves a child behind.
    """
    kept, back_s = memory_back(server, growth, 1e6 * limits("isolation")["memory kept after a minute"].value)
    children = list(tree(server.pid))[1:]
    try:
        exit_s = server.terminate(EXIT_S)
    except RuntimeError as error:
        error.add_note(f"memory {kept / 1e6:+.0f} MB after {back_s:.0f} s")
        raise
    until = time.monotonic() + CHILDREN_S
    while any(map(runs, children)) and time.monotonic() < until:
        time.sleep(0.01)
    if left := sum(map(runs, children)):
        raise RuntimeError(f"SIGTERM ended the server, and left {left} of its {len(children)} children running")
    return Ending(kept, back_s, exit_s)


def memory_back(server: ServerProcess, growth: Growth, allowed_bytes: float) -> tuple[int, float]:
    """Return a server's growth, and after how many seconds: when it is as allowed, at most after BACK_S."""
    began = time.monotonic()
    while True:
        kept, took = growth.now(), time.monotonic() - began
        if (code := server.exit_code()) is not None:
            raise RuntimeError(f"the server ended with exit code {code} after the attack")
        if kept > MAX_GROWTH_BYTES:
            raise RuntimeError(f"the server took {kept / 2**30:.1f} GiB more memory after the attack")
        if kept <= allowed_bytes or took > BACK_S:
            return max(0, kept), took
        time.sleep(LOOK_EVERY_S)


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended may still be listed until its parent has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
