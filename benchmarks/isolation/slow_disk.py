"""`quire serve` with a journal on a slow disk: `python -m benchmarks.isolation.slow_disk serve ...`.

Each commit takes COMMIT_S more, on the thread that writes, as on a disk that is busy with other things. The journal
lasts as long as the process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from app.cli import main
from app.journal.store import Changes, JournalStore

COMMIT_S = 0.2


class SlowStore(JournalStore):
    """A journal whose commits take long."""

    def commit(self, changes: Changes) -> None:
        time.sleep(COMMIT_S)
        super().commit(changes)


if __name__ == "__main__":
    with (
        patch("app.server.run.JournalStore", SlowStore),
        tempfile.TemporaryDirectory(prefix="quire-journal-") as folder,
    ):
        sys.exit(main([*sys.argv[1:], "--journal", str(Path(folder) / "journal")]))
