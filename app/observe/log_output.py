"""Where the log of the process goes, and in which form."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TextIO

from app.contract.errors import ModelLoading
from app.observe.log import ACCESS_LOGGER, FIELDS, JsonFormatter
from app.observe.text_log import TextFormatter, has_colours

AUTO, JSON, TEXT = "auto", "json", "text"


def configure_logging(
    stream: TextIO,
    log_format: str = AUTO,
    *,
    level: int = logging.INFO,
    environ: Mapping[str, str] = os.environ,
    before_write: Callable[[], None] = lambda: None,
) -> None:
    """Send the log of the whole process to `stream`, from `level` on. Call it once, at start.

    `auto` is for people where `stream` is a terminal, else JSON lines. `before_write` is called before each line.
    """
    handler = LogHandler(stream, before_write)
    is_text = log_format == TEXT or (log_format == AUTO and stream.isatty())
    handler.setFormatter(TextFormatter(is_coloured=has_colours(stream, environ)) if is_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream. Of the requests that are refused while the model loads the first leaves its line.

    How many more there were is told before the line of the next request that is not, or at the end of the process:
    clients that wait for a large model ask again and again.
    """

    def __init__(self, stream: TextIO, before_write: Callable[[], None] = lambda: None) -> None:
        super().__init__(stream)
        self._before_write = before_write
        self._num_refused = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it. Under the handler's lock."""
        if record.name == ACCESS_LOGGER:
            if getattr(record, FIELDS, {}).get("reason") == ModelLoading.code:
                self._num_refused += 1
                if self._num_refused > 1:
                    return
            else:
                self._tell_refused()
        self._write(record)

    def close(self) -> None:
        """Tell what was counted and not told, as the process ends."""
        self._tell_refused()
        super().close()

    def _tell_refused(self) -> None:
        num_more, self._num_refused = self._num_refused - 1, 0
        if num_more > 0:
            message = f"{num_more} more requests were refused while the model was loading"
            fields = {"reason": ModelLoading.code, "count": num_more}
            record = logging.LogRecord(ACCESS_LOGGER, logging.INFO, "", 0, message, None, None)
            setattr(record, FIELDS, fields)
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        self._before_write()
        super().emit(record)
