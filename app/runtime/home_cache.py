"""The folder for what Quire compiles or downloads once: `$XDG_CACHE_HOME/quire`, or ~/.cache/quire."""

from __future__ import annotations

import os
from pathlib import Path


def home_cache() -> Path | None:
    """Return the folder, which may not exist yet; None if there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "quire"
    except RuntimeError:  # there is no home
        return None
