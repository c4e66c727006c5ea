"""Standard output, whose reader may go away at any time (`quire generate ... | head`)."""

from __future__ import annotations

import os
import sys


def discard_output() -> None:
    """Lose all further output, so that what is still buffered cannot fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
