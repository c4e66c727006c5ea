"""What people read of a server while it starts and ends: lines, and on a terminal one line that moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TextIO

from app.runtime.clock import Clock, monotonic

FIRST_PAUSE_S = 2.0
_TO_LINE_BEGIN, _CLEAR_TO_END = "\r", "\x1b[K"


class Console:
    """Writes to `stream`, nothing at all if it `is_quiet`. Any thread; without a reader lines are lost.

    Attributes:
        is_terminal: whether a person watches, so that a line can move.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        is_quiet: bool = False,
        environ: Mapping[str, str] = os.environ,
        clock: Clock = monotonic,
    ) -> None:
        self.is_terminal = stream.isatty() and environ.get("TERM") != "dumb"
        self._stream = stream
        self._is_quiet = is_quiet
        self._clock = clock
        self._lock = threading.Lock()
        self._moving = ""
        self._pause_s = FIRST_PAUSE_S
        self._next_time: float | None = None  # of a moving line where nothing can move

    def say(self, line: str) -> None:
        """Print a line for good."""
        with self._lock:
            self._write(f"{self._take_moving()}{line}\n")
            self._next_time = None

    def move(self, line: str) -> None:
        """Show `line` in place of the one that moved last.

        Where nothing can move it is printed once it has been said again and again for 2 s, and then ever more seldom.
        """
        with self._lock:
            if not self.is_terminal:
                self._say_seldom(line)
            elif line != self._moving:
                self._moving = line
                self._write(f"{_TO_LINE_BEGIN}{line}{_CLEAR_TO_END}")

    def clear(self) -> None:
        """Take the moving line away, so that others can write to the terminal."""
        with self._lock:
            if self._moving:
                self._write(self._take_moving())

    def _take_moving(self) -> str:
        taken, self._moving = self._moving, ""
        return f"{_TO_LINE_BEGIN}{_CLEAR_TO_END}" if taken else ""

    def _say_seldom(self, line: str) -> None:
        now = self._clock()
        if self._next_time is None:
            self._pause_s, self._next_time = FIRST_PAUSE_S, now + FIRST_PAUSE_S
        elif now >= self._next_time:
            self._pause_s *= 2
            self._next_time = now + self._pause_s
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        if self._is_quiet:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._is_quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # or the interpreter's end fails on it
