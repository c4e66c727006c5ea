"""Log records, and their two formats: one JSON object per line, and text for reading.

Every request is logged once, as a `request` record when it ends, and so is every stream on a WebSocket.

Control characters are escaped, line ends included, so clients cannot forge lines or control a terminal.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from app.observe.terminal import Colour, Terminal

ACCESS_LOGGER = "quire.access"
FIELDS = "fields"
"""The attribute of a record that holds its fields by name."""
_FIRST_FIELDS = ("method", "path")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, and the fields given to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        fields = getattr(record, FIELDS, {})
        if exception := _exception_of(record):
            fields = {**fields, "exception": exception}
        return json_line(record.levelname, record.name, record.getMessage(), fields, created=record.created)


class TextFormatter(logging.Formatter):
    """Formats a record as one line for reading; an exception follows on indented lines."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._paint = terminal.paint

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        fields = getattr(record, FIELDS, None)
        text = _printable(record.getMessage()) if fields is None else self._request(record.getMessage(), fields)
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = self._paint(f"{record.levelname.lower():<7}", _colour_of(record.levelno))
        lines = [f"{self._paint(clock, Colour.DIM)} {level} {text}"]
        lines += [f"    {_printable(line)}" for line in _exception_of(record).splitlines()]
        return "\n".join(lines)

    def _request(self, message: str, fields: Mapping[str, object]) -> str:
        """Return method, path, status, reason and duration of a request, then the other fields by name."""
        known = {name: value for name, value in fields.items() if value is not None}
        head = [_printable(str(known.pop(name))) for name in _FIRST_FIELDS if name in known]
        if (status := known.pop("status", None)) is not None:
            colour = Colour.RED if _is_at_least(status, 500) else Colour.YELLOW if _is_at_least(status, 400) else None
            head.append(self._paint(_printable(str(status)), colour))
        if (reason := known.pop("reason", None)) is not None:
            head.append(_printable(str(reason)))
        if isinstance(duration := known.pop("duration_ms", None), (int, float)):
            head.append(f"{duration:,.0f} ms")
        rest = " ".join(f"{name}={_printable(str(value))}" for name, value in known.items())
        text = message if message != "request" else ""
        return "  ".join(part for part in (_printable(text), " ".join(head), self._paint(rest, Colour.DIM)) if part)


def json_line(level: str, logger: str, message: str, fields: Mapping[str, object], *, created: float) -> str:
    """Return one line of the log, without a line end; `created` is in seconds since the epoch.

    For code that cannot use `logging`, which takes locks that a hanging thread may hold.
    """
    line = {
        "time": datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds"),
        "level": level.lower(),
        "logger": logger,
        "message": message,
        **fields,
    }
    return json.dumps(line, default=str)


def log_request(*, is_routine: bool = False, **fields: object) -> None:
    """Log a request when it ends: client, route, status and reason.

    Routine requests (health probes, files of the chat page) are logged at DEBUG, because they are frequent.
    """
    level = logging.DEBUG if is_routine else logging.INFO
    logging.getLogger(ACCESS_LOGGER).log(level, "request", extra={FIELDS: fields})


def _exception_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record; "" if it has none."""
    if record.exc_text or not record.exc_info:
        return record.exc_text or ""
    return logging.Formatter().formatException(record.exc_info)


def _colour_of(level: int) -> Colour | None:
    if level >= logging.ERROR:
        return Colour.RED
    return Colour.YELLOW if level >= logging.WARNING else None


def _is_at_least(status: object, limit: int) -> bool:
    return isinstance(status, int) and status >= limit


def _printable(text: str) -> str:
    """Return `text` with all characters that are not printable escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
