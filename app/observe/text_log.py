"""Log lines for reading: time, level, message, and the fields of a request, in colours on a terminal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TextIO

from app.observe.log import FIELDS

_HEAD = ("method", "path")
_RED, _YELLOW, _DIM = 31, 33, 2


def has_colours(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is a terminal with colours, and NO_COLOR is not set (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class TextFormatter(logging.Formatter):
    """Formats a record as one line for reading; an exception follows on indented lines.

    Control characters are escaped, line ends included, so clients cannot forge lines or control a terminal.
    """

    def __init__(self, *, is_coloured: bool = False) -> None:
        super().__init__()
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        fields = getattr(record, FIELDS, None)
        text = _printable(record.getMessage()) if fields is None else self._request(record.getMessage(), fields)
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = self._paint(f"{record.levelname.lower():<7}", _colour_of(record.levelno))
        lines = [f"{self._paint(clock, _DIM)} {level} {text}"]
        if record.exc_info:
            lines += [f"    {_printable(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)

    def _request(self, message: str, fields: Mapping[str, object]) -> str:
        """Return method, path, status, reason and duration of a request, then the other fields by name."""
        known = {name: value for name, value in fields.items() if value is not None}
        head = [_printable(str(known.pop(name))) for name in _HEAD if name in known]
        if (status := known.pop("status", None)) is not None:
            colour = _RED if _is_at_least(status, 500) else _YELLOW if _is_at_least(status, 400) else None
            head.append(self._paint(_printable(str(status)), colour))
        if (reason := known.pop("reason", None)) is not None:
            head.append(_printable(str(reason)))
        if isinstance(duration := known.pop("duration_ms", None), (int, float)):
            head.append(f"{duration:,.0f} ms")
        rest = " ".join(f"{name}={_printable(str(value))}" for name, value in known.items())
        text = message if message != "request" else ""
        return "  ".join(part for part in (_printable(text), " ".join(head), self._paint(rest, _DIM)) if part)

    def _paint(self, text: str, colour: int | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._is_coloured and colour is not None and text else text


def _colour_of(level: int) -> int | None:
    if level >= logging.ERROR:
        return _RED
    return _YELLOW if level >= logging.WARNING else None


def _is_at_least(status: object, limit: int) -> bool:
    return isinstance(status, int) and status >= limit


def _printable(text: str) -> str:
    """Return `text` with all characters that are not printable escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
