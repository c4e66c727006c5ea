"""Configures the log of the process: its stream and format."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TextIO

from app.contract.errors import ModelLoading
from app.observe.log import ACCESS_LOGGER, FIELDS, JsonFormatter, TextFormatter
from app.observe.terminal import Terminal

AUTO, JSON, TEXT = "auto", "json", "text"


def configure_logging(
    stream: TextIO,
    log_format: str = AUTO,
    *,
    level: int = logging.INFO,
    environ: Mapping[str, str] = os.environ,
    before_write: Callable[[], None] = lambda: None,
) -> None:
    """Send the log of the process to `stream`, from `level` upwards. Call it once, at startup.

    `auto` is `text` if `stream` is a terminal, else `json`. `before_write` is called before each line.
    """
    handler = LogHandler(stream, before_write)
    is_text = log_format == TEXT or (log_format == AUTO and stream.isatty())
    handler.setFormatter(TextFormatter(Terminal.of(stream, environ)) if is_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream. Of requests that are rejected while the model is loading, only the first is written.

    The number of the others is written before the next request that is not rejected, or at the end of the process:
    clients that wait for a large model retry often.
    """

    def __init__(self, stream: TextIO, before_write: Callable[[], None]) -> None:
        super().__init__(stream)
        self._before_write = before_write
        self._num_rejected = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it. Under the handler's lock."""
        if record.name == ACCESS_LOGGER:
            if getattr(record, FIELDS, {}).get("reason") == ModelLoading.code:
                self._num_rejected += 1
                if self._num_rejected > 1:
                    return
            else:
                self._write_num_rejected()
        self._write(record)

    def close(self) -> None:
        """Write the number of rejected requests that were not written, at the end of the process."""
        self._write_num_rejected()
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
        super().emit(record)
