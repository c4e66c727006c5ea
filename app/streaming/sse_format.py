"""Server-sent events, sans I/O, by the rules of WHATWG HTML 9.2.

The stock `openai` client decides the shapes used here: a heartbeat is a comment line without a blank line behind it,
because a blank line after a comment makes that client dispatch an empty event on streams with ids; `retry:` is never
sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEARTBEAT = b": \n"
DONE = b"data: [DONE]\n\n"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event; `id` is the last id seen on the stream so far."""

    data: str
    event: str = "message"
    id: str = ""


class SseDecoder:
    """Turns bytes, cut anywhere, into events. An event that is not closed by a blank line is never dispatched.

    Attributes:
        retry_ms: the last reconnection time the server asked for.
    """

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._rest = b""
        self._ends_with_cr = False
        self._is_at_start = True
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete."""
        if not chunk:
            return []
        if self._ends_with_cr and chunk[:1] == b"\n":  # the second half of a CRLF whose line has ended already
            chunk = chunk[1:]
        self._ends_with_cr = chunk[-1:] == b"\r"
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        events = [self._take(line) for line in lines]
        return [event for event in events if event is not None]

    def _take(self, line: bytes) -> SseEvent | None:
        if self._is_at_start:
            line = line.removeprefix(_BOM)
            self._is_at_start = False
        if not line:
            return self._dispatch()
        # Line ends are never part of a longer UTF-8 sequence, so a line decodes as it would inside the stream.
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> SseEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return SseEvent("\n".join(data), event or "message", self._id) if data else None
