"""The folder for what Quire remembers between runs: `$XDG_STATE_HOME/quire`, or ~/.local/state/quire."""

from __future__ import annotations

import os
from pathlib import Path


def home_state() -> Path | None:
    """Return the folder, which may not exist yet; None if there is no home."""
    base = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local/state") / "quire"
    except RuntimeError:  # there is no home
        return None
