"""The lines typed before, for the arrow keys: kept in a file that only its owner can read."""

from __future__ import annotations

import contextlib
import fcntl
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
        self._new: list[str] = []  # noted here: readline forgets lines where its user has set a number of them
        with contextlib.suppress(ImportError):
            self._readline = import_module("readline")
        self._load()

    def read(self, prompt: str) -> str:
        """Read a line from the terminal, and note it.

        Raises:
            EOFError, KeyboardInterrupt: Ctrl-D or Ctrl-C was pressed.
        """
        line = input(prompt)
        if line and line not in self._new[-1:]:
            self._new.append(line)
        return line

    def typed(self) -> str:
        """Return the line that Ctrl-C has ended."""
        return "" if self._readline is None else str(self._readline.get_line_buffer())

    def save(self) -> None:
        """Add the lines of this chat to the file, behind those of chats that ended meanwhile; only the newest stay.

        A folder that cannot be written keeps none.
        """
        if self._readline is None or self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
            with open(handle, "r+", encoding="utf-8", errors="replace") as file:
                os.fchmod(file.fileno(), 0o600)  # also of a file that was there
                with contextlib.suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX)  # another chat may end just now
                lines = [*file.read().splitlines(), *map(_as_line, self._new)]
                file.seek(0)
                file.truncate()
                file.writelines(f"{line}\n" for line in lines[-MAX_LINES:])
        self._new.clear()

    def _load(self) -> None:
        if self._readline is None or self._file is None:
            return
        with contextlib.suppress(OSError, ValueError):
            for line in self._file.read_text(encoding="utf-8").splitlines()[-MAX_LINES:]:
                self._readline.add_history(line)


def _as_line(text: str) -> str:
    """Return a pasted text of several lines as one."""
    return " ".join(text.splitlines())
