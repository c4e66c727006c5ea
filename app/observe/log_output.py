"""Configures the log of the process: its stream and format."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from app.contract.errors import ModelLoading
from app.observe.log import ACCESS_LOGGER, FIELDS, JsonFormatter, TextFormatter
from app.observe.log_writer import LogWriter
from app.observe.terminal import Terminal

AUTO, JSON, TEXT = "auto", "json", "text"
LOG_LOGGER = "quire.log"


def configure_logging(
    stream: TextIO,
    writer: LogWriter,
    log_format: str = AUTO,
    *,
    level: int = logging.INFO,
    environ: Mapping[str, str] = os.environ,
    before_write: Callable[[], None] = lambda: None,
) -> LogHandler:
    """Send the log of the process through `writer` to `stream`, from `level` upwards. Call it once, at startup.

    `auto` is `text` if `stream` is a terminal, else `json`. `before_write` is called before each line is queued.
    """
    handler = LogHandler(stream, writer, before_write)
    is_text = log_format == TEXT or (log_format == AUTO and stream.isatty())
    handler.setFormatter(TextFormatter(Terminal.of(stream, environ)) if is_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return handler


class LogHandler(logging.Handler):
    """Queues records; the writer's thread formats and writes them. Never blocks, but for `close`.

    Of requests that are rejected while the model is loading, only the first is written. The number of the others is
    written before the next request that is not rejected, or at the end of the process: clients that wait for a large
    model retry often.
    """

    def __init__(self, stream: TextIO, writer: LogWriter, before_write: Callable[[], None]) -> None:
        super().__init__()
        self._stream = stream
        self._writer = writer
        self._before_write = before_write
        self._num_rejected = 0
        writer.describe_dropped = self._describe_dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it. Under the handler's lock."""
        if record.name == ACCESS_LOGGER:
            if getattr(record, FIELDS, {}).get("reason") == ModelLoading.code:
                self._num_rejected += 1
                if self._num_rejected > 1:
                    return
            else:
                self._write_num_rejected()
        self._write(record)

    def close(self) -> None:
        """Write the number of rejected requests that were not written, and end the writer. Idempotent."""
        self._write_num_rejected()
        self._writer.close()
        super().close()

    def _write_num_rejected(self) -> None:
        num_more, self._num_rejected = self._num_rejected - 1, 0
        if num_more > 0:
            message = f"{num_more} more requests were rejected while the model was loading"
            fields = {"reason": ModelLoading.code, "count": num_more}
            record = logging.LogRecord(ACCESS_LOGGER, logging.INFO, "", 0, message, None, None)
            setattr(record, FIELDS, fields)
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        self._before_write()
        self._writer.put(self._stream, partial(self._line, _completed(record)))

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self.format(record)}\n"
        except Exception:
            self.handleError(record)
            return ""

    def _describe_dropped(self, count: int) -> tuple[TextIO, str]:
        lines = "1 line" if count == 1 else f"{count:,} lines"
        message = f"{lines} of the log were dropped: nothing read them in time"
        return self._stream, self._line(logging.LogRecord(LOG_LOGGER, logging.WARNING, "", 0, message, None, None))


def _completed(record: logging.LogRecord) -> logging.LogRecord:
    """Return the record in a form that does not depend on objects which may change before it is written."""
    if not record.args and not record.exc_info and type(record.msg) is str:
        return record
    complete = copy.copy(record)
    complete.msg, complete.args = record.getMessage(), None
    if record.exc_info:
        complete.exc_text = logging.Formatter().formatException(record.exc_info)
        complete.exc_info = None
    return complete
