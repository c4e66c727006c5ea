"""What a command does that is told to end while it has programs under measurement."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_TERMINATED = 143  # 128 + SIGTERM, as shells say it


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the command like Ctrl-C does, with all that it has started. Main thread."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(end, lambda number, frame: sys.exit(EXIT_TERMINATED)) for end in ends]
    try:
        yield
    finally:
        for end, handler in zip(ends, before, strict=True):
            signal.signal(end, handler)
