"""The lines typed before, for the arrow keys: kept in a file that only its owner can read."""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from app.runtime.state_folder import home_state

MAX_LINES = 1000


class History:
    """Editing of lines with readline, and their history. Works without both where Python lacks readline."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = home_state() if folder is None else folder
        self._file = None if folder is None else folder / "chat_history"
        self._readline: Any = None
        with contextlib.suppress(ImportError):
            self._readline = import_module("readline")
        self._load()

    def typed(self) -> str:
        """Return what is on the line that Ctrl-C has ended."""
        return "" if self._readline is None else str(self._readline.get_line_buffer())

    def save(self) -> None:
        """Write the newest lines; a folder that cannot be written keeps none."""
        if self._readline is None or self._file is None:
            return
        count = self._readline.get_current_history_length()
        lines = [self._readline.get_history_item(number) for number in range(max(1, count - MAX_LINES + 1), count + 1)]
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(handle, "w", encoding="utf-8", errors="replace") as file:
                os.fchmod(file.fileno(), 0o600)  # also of a file that was there
                file.writelines(f"{_as_line(line)}\n" for line in lines if line)

    def _load(self) -> None:
        if self._readline is None or self._file is None:
            return
        with contextlib.suppress(OSError, ValueError):
            for line in self._file.read_text(encoding="utf-8").splitlines()[-MAX_LINES:]:
                self._readline.add_history(line)


def _as_line(text: str) -> str:
    """Return a pasted text of several lines as one."""
    return " ".join(text.splitlines())
