"""What the user types: lines, texts of several lines, and the end.

A line that ends with a backslash goes on with the next one. Three double quotes at the begin of a line begin a text
that ends with a line that ends with three. A pasted text of several lines is one text, where readline knows of pasting.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator

from app.commands.dialog.history import History
from app.config.unicode_text import keep_invalid_bytes

QUOTES = '"""'
PROMPT, MORE = "> ", "... "


def typed_questions(history: History, say: Callable[[str], None]) -> Generator[str, None, None]:
    """Yield the texts that are typed on a terminal until Ctrl-D, or Ctrl-C twice on empty lines; save the history.

    Ctrl-C with something typed, be it an earlier line of the text, drops that.
    """
    keep_invalid_bytes()
    has_warned = False
    try:
        while True:
            line = None
            try:
                line = history.read(PROMPT)
                text = _whole(line, lambda: history.read(MORE))
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                was_empty = line is None and not history.typed()
                print()
                if was_empty and has_warned:
                    return
                has_warned = was_empty
                if was_empty:
                    say("Ctrl-C once more ends the chat, and so does Ctrl-D")
                continue
            has_warned = False
            yield text
    finally:
        history.save()


def piped_questions() -> Iterator[str]:
    """Yield the texts of standard input that is no terminal."""
    keep_invalid_bytes()
    while line := sys.stdin.readline():
        yield _whole(line.rstrip("\n"), _next_line)


def _next_line() -> str:
    if line := sys.stdin.readline():
        return line.rstrip("\n")
    raise EOFError


def _whole(line: str, more: Callable[[], str]) -> str:
    """Return a text that begins with `line`; `more` reads its further lines, and raises EOFError if there is none."""
    if line.lstrip().startswith(QUOTES):
        return _quoted(line.lstrip().removeprefix(QUOTES), more)
    lines = [line]
    with contextlib.suppress(EOFError):  # which ends the text, too
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(more())
    return "\n".join(lines).strip()


def _quoted(line: str, more: Callable[[], str]) -> str:
    lines = [line]
    with contextlib.suppress(EOFError):
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(more())
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip()
