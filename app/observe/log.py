"""What is logged, and its form for machines: one JSON object per line (for people: `text_log`).

Every request leaves exactly one `request` record when it ends, and so does every stream on a WebSocket.

Non-ASCII and control characters are written as escapes, so no client can forge a line or drive a terminal.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

ACCESS_LOGGER = "quire.access"
FIELDS = "fields"
"""The attribute of a record that holds its fields by name."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, and the fields given to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields = getattr(record, FIELDS, {})
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        return json_line(record.levelname, record.name, record.getMessage(), fields, created=record.created)


def json_line(level: str, logger: str, message: str, fields: Mapping[str, object], *, created: float) -> str:
    """Return one line of the log, without its end; `created` is in seconds since the epoch.

    For those who cannot use `logging`: it takes locks, which a thread that hangs may hold.
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
    """Write the one record that a request leaves: who asked for what, how it ended and why.

    Routine ones (probes, files of the page) are logged at DEBUG: they come by the second and say nothing.
    """
    level = logging.DEBUG if is_routine else logging.INFO
    logging.getLogger(ACCESS_LOGGER).log(level, "request", extra={FIELDS: fields})
