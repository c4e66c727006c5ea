"""What the kernel holds of streams that are not read, as `ss` tells it."""

from __future__ import annotations

import re
import subprocess

_QUEUED = re.compile(r"skmem:\(r(\d+),.*?,w(\d+),")
TIMEOUT_S = 10.0


def queued_kib(port: int, num_sockets: int) -> float | None:
    """Return the mean KiB that the `num_sockets` fullest sockets of a port hold; None where `ss` is missing or fails.

    Counted as the kernel counts it: whole buffers, not the bytes in them.
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
    """Return the bytes of each socket in what `ss -m` has printed: received and not read, and sent or to be sent."""
    return [int(received) + int(queued) for received, queued in _QUEUED.findall(text)]
