"""`quire serve` that prints at its end how long the journal's thread has worked: `python -m ... serve OPTIONS`."""

from __future__ import annotations

import atexit
import sys
import time
from unittest.mock import patch

from app.cli import main
from app.streaming.kept.journal_work import JournalWork
from app.streaming.kept.journaling import Journaling

BEGINS = "the journal's thread has worked for "


class TimedJournaling(Journaling):
    """Adds up the processor time of the thread that writes.

    Attributes:
        seconds: of all that it has written.
    """

    seconds = 0.0

    def _write_now(self, work: JournalWork) -> bool:
        began = time.thread_time()
        try:
            return super()._write_now(work)
        finally:
            TimedJournaling.seconds += time.thread_time() - began


if __name__ == "__main__":
    atexit.register(lambda: print(f"{BEGINS}{TimedJournaling.seconds:.6f} s", flush=True))
    with patch("app.api.body.answer_journal.Journaling", TimedJournaling):
        sys.exit(main(sys.argv[1:]))
