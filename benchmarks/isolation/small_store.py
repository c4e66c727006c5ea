"""`quire serve` with a small prefix cache on disk: `python -m benchmarks.isolation.small_store serve ...`.

It is full after a few prompts, so that each block that is written makes room for itself. It lasts as long as the
process.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from app.cli import main

SPACE = "64MiB"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="quire-kv-") as folder:
        sys.exit(main([*sys.argv[1:], "--kv-disk", str(Path(folder) / "kv"), "--kv-disk-space", SPACE]))
