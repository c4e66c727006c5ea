"""`quire serve` whose threads have their names for the system, too: `python -m ... serve OPTIONS`.

So their times can be told apart from outside, without asking the server. Python does the same from 3.14 on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread
from unittest.mock import patch

from app.cli import main

NAME = Path("/proc/thread-self/comm")
_RUN = Thread.run


def run_named(thread: Thread) -> None:
    """Run a thread under its name."""
    NAME.write_text(thread.name)
    _RUN(thread)


if __name__ == "__main__":
    with patch.object(Thread, "run", run_named):
        sys.exit(main(sys.argv[1:]))
