"""Messages of a server on its terminal during startup and shutdown: lines, and one status line that is overwritten."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TextIO

from app.runtime.clock import Clock, monotonic

FIRST_PAUSE_S = 2.0
_TO_LINE_BEGIN, _CLEAR_TO_END = "\r", "\x1b[K"


class Console:
    """Writes to `stream`, unless it `is_quiet`. Any thread; lines are dropped once the stream is closed.

    Attributes:
        is_terminal: whether the stream is a terminal, on which the status line can be overwritten.
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
        self._status = ""
        self._pause_s = FIRST_PAUSE_S
        self._next_time: float | None = None  # of the next status on a stream that is no terminal

    def print_line(self, line: str) -> None:
        """Print a line."""
        with self._lock:
            self._write(f"{self._erase_status()}{line}\n")
            self._next_time = None

    def show_status(self, line: str) -> None:
        """Show `line` in place of the last status.

        On a stream that is no terminal, print the status after 2 s, then after pauses that double each time.
        """
        with self._lock:
            if not self.is_terminal:
                self._print_rarely(line)
            elif line != self._status:
                self._status = line
                self._write(f"{_TO_LINE_BEGIN}{line}{_CLEAR_TO_END}")

    def clear_status(self) -> None:
        """Remove the status line, so that other output can be written to the terminal."""
        with self._lock:
            if self._status:
                self._write(self._erase_status())

    def _erase_status(self) -> str:
        shown, self._status = self._status, ""
        return f"{_TO_LINE_BEGIN}{_CLEAR_TO_END}" if shown else ""

    def _print_rarely(self, line: str) -> None:
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
            # Otherwise the interpreter fails when it flushes the stream at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
