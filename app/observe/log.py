"""Log records, and their format as one JSON object per line (the format for reading is in `text_log`).

Every request is logged once, as a `request` record when it ends, and so is every stream on a WebSocket.

Non-ASCII and control characters are escaped, so clients cannot forge lines or send control sequences to a terminal.
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
        """Return the line, without a line end."""
        fields = getattr(record, FIELDS, {})
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        return json_line(record.levelname, record.name, record.getMessage(), fields, created=record.created)


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
