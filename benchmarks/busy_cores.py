"""How busy the machine's cores are with other programs before a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path


def busy_cores(seconds: float) -> float:
    """Return the mean number of busy cores in the next `seconds`; 0 if the system does not report it. Blocks."""
    before = _busy_ticks()
    time.sleep(seconds)
    return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def _busy_ticks() -> int:
    try:
        _cpu, *ticks = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return 0
    user, nice, system, _idle, _waiting, *interrupts = map(int, ticks)
    return user + nice + system + sum(interrupts[:3])  # hard and soft interrupts, and steal time
