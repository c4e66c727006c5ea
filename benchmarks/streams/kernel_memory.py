"""The kernel memory of streams that are not read, from `ss`."""

from __future__ import annotations

import re
import subprocess

_QUEUED = re.compile(r"skmem:\(r(\d+),.*?,w(\d+),")
TIMEOUT_S = 10.0


def queued_kib(port: int, num_sockets: int) -> float | None:
    """Return the mean KiB of the `num_sockets` fullest sockets of a port; None if `ss` is missing or fails.

    As in the kernel's accounting, complete buffers count, not the bytes in them.
    """
    command = ["ss", "-tmnH", "state", "established", f"( sport = :{port} )"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    held = read_queued(done.stdout)
    fullest = sorted(held, reverse=True)[:num_sockets]
    return sum(fullest) / len(fullest) / 1024 if fullest else None


def read_queued(text: str) -> list[int]:
    """Return the bytes of each socket in the output of `ss -m`: unread received ones, and unacknowledged sent ones."""
    return [int(received) + int(queued) for received, queued in _QUEUED.findall(text)]
