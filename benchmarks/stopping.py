"""Signal handling of commands that start other programs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_TERMINATED = 143  # 128 + SIGTERM, as in shells


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End the command and the programs it has started also on SIGTERM and SIGHUP, as on Ctrl-C. Main thread."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(each, lambda number, frame: sys.exit(EXIT_TERMINATED)) for each in numbers]
    try:
        yield
    finally:
        for each, handler in zip(numbers, before, strict=True):
            signal.signal(each, handler)
