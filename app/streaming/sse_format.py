"""Server-sent events, sans I/O, by the rules of WHATWG HTML 9.2.

The official `openai` client determines two shapes: a heartbeat is a comment line without a blank line after it, because
that client dispatches an empty event for a blank line after a comment; and `retry:` is never sent.
"""

from __future__ import annotations

import re

HEARTBEAT = b": \n"
DONE = b"data: [DONE]\n\n"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Returns the data of events, from bytes split anywhere. An event without a blank line at its end is dropped.

    Names, ids and reconnection times of events are ignored.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._ends_with_cr = False
        self._is_at_start = True
        self._lines: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next bytes and return the data of the events that they complete."""
        if not chunk:
            return []
        if self._ends_with_cr and chunk[:1] == b"\n":  # the second half of a CRLF whose line has ended already
            chunk = chunk[1:]
        self._ends_with_cr = chunk[-1:] == b"\r"
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        return [data for line in lines if (data := self._take(line)) is not None]

    def _take(self, line: bytes) -> str | None:
        if self._is_at_start:
            line = line.removeprefix(_BOM)
            self._is_at_start = False
        if not line:
            data, self._lines = self._lines, []
            return "\n".join(data) if data else None
        # Line ends are never part of a longer UTF-8 sequence, so a line decodes as it would inside the stream.
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name == "data":
            self._lines.append(value.removeprefix(" "))
        return None
