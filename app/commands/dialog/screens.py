"""How an answer is shown while it is generated: as it is, wrapped at words, or (in `markdown_screen`) as Markdown."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from app.commands.dialog.markdown_blocks import Fence
from app.runtime.visible_text import visible


class Screen(Protocol):
    """Shows one answer. One thread."""

    def write(self, text: str) -> None:
        """Show the next piece."""

    def end(self) -> None:
        """Show what was held back, and end the line."""


class RawScreen:
    """Implements `Screen` for files and pipes: the answer's own characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def end(self) -> None:
        self.write("\n")


class WrappedScreen:
    """Implements `Screen` for terminals without colours: text wraps between words, each shown once it is complete.

    Lines of fenced code run on, so that the terminal wraps them: what is copied has no line ends of the screen in it.
    """

    def __init__(self, stream: TextIO, width: int) -> None:
        self._stream = stream
        self._width = width
        self._column = 0
        self._gap = ""  # blanks before the word; dropped where a line ends
        self._word = ""
        self._line = ""  # the text's own, as far as it has arrived
        self._fence: Fence | None = None  # of the code that is being written

    def write(self, text: str) -> None:
        shown = ""
        for char in visible(text).replace("\t", "    "):
            if char == "\n":
                shown += self._take_word() + "\n"
                self._end_line()
                continue
            self._line += char
            if self._fence is not None:
                shown += char
            elif char == " ":
                shown += self._take_word()
                self._gap += char
            else:
                self._word += char
        self._stream.write(shown)
        self._stream.flush()

    def end(self) -> None:
        self._stream.write(self._take_word() + "\n")
        self._stream.flush()

    def _end_line(self) -> None:
        line, self._line, self._gap, self._column = self._line, "", "", 0
        if self._fence is None:
            self._fence = Fence.of(line)
        elif self._fence.is_closed_by(line):
            self._fence = None

    def _take_word(self) -> str:
        if not self._word:
            return ""
        word, gap, width = self._word, self._gap, sum(map(_columns, self._word))
        if self._column and self._column + len(gap) + width > self._width:
            gap, self._column = "\n", -1
        self._column += len(gap) + width
        self._word = self._gap = ""
        return gap + word


def plain_screen(stream: TextIO | None = None) -> Screen:
    """Return a screen for text that is no Markdown, on a stream (by default standard output)."""
    stream = sys.stdout if stream is None else stream
    return WrappedScreen(stream, shutil.get_terminal_size().columns - 1) if stream.isatty() else RawScreen(stream)


def print_wrapped(text: str, stream: TextIO | None = None) -> None:
    """Print a text of Quire's own on a stream (by default standard output), with control characters written out."""
    screen = plain_screen(stream)
    screen.write(visible(text))
    screen.end()


def print_error(line: str) -> None:
    """Print the line of a failure on standard error; on a terminal it wraps between words."""
    screen = plain_screen(sys.stderr)
    screen.write(line)
    screen.end()


def new_screen(stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> Callable[[], Screen]:
    """Return a maker of answers' screens, as the stream (by default standard output) and the environment allow.

    Markdown and colours are for a terminal that is not `dumb`, unless NO_COLOR is set (https://no-color.org).
    """
    stream = sys.stdout if stream is None else stream
    if not stream.isatty() or environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return lambda: plain_screen(stream)
    from app.commands.dialog.markdown_screen import MarkdownScreen  # only a terminal needs what it imports

    return lambda: MarkdownScreen(stream)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
