"""The memory that this process needs for a while, such as while a model is loaded."""

from __future__ import annotations

import re
from pathlib import Path

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """Let the peak be what is in memory now."""
    _CLEAR_REFS.write_text("5")


def passing_bytes() -> int:
    """Return how much more was in memory at the peak than is now, pages of files included."""
    status = _STATUS.read_text()
    peak, kept = (int(found) << 10 for found in re.findall(r"^Vm(?:HWM|RSS):\s+(\d+) kB", status, re.MULTILINE))
    return peak - kept
