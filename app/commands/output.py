"""Standard output, whose reader may go away at any time (`quire generate ... | head`, a supervisor that has died)."""

from __future__ import annotations

import os
import sys


def say(line: str) -> None:
    """Print one line at once; without a reader it is lost and nothing else happens."""
    try:
        print(line, flush=True)
    except OSError:
        discard_output()


def discard_output() -> None:
    """Lose all further output, so that what is still buffered cannot fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
