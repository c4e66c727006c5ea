"""Standard output, which its reader may close at any time (`quire generate ... | head`)."""

from __future__ import annotations

import os
import sys


def discard_output() -> None:
    """Discard all further output, so that flushing the buffer at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
