"""Where a request's body ends, read beside the parser: what comes after it belongs to the next request.

A chunked body is a line with a size (hexadecimal, maybe with an extension) before each chunk, size 0 for the last,
then trailer lines up to an empty one. The parser puts no bound on these lines; here each has one.
"""

from __future__ import annotations

import re

from app.contract.errors import HttpInvalid
from app.server.guard import ConnectionLimits

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(;[^\r\n]*)?\r\n")
_LINE_MARGIN = 16  # the size and the line's end, beside an extension


class DeclaredBody:
    """The framing of a body whose length, at least 1, was declared.

    Attributes:
        num_bytes: how much of the body has come.
        is_complete: whether all of it has.
    """

    __slots__ = ("_length", "is_complete", "num_bytes")

    def __init__(self, length: int) -> None:
        self.num_bytes = 0
        self.is_complete = False
        self._length = length

    def take(self, data: bytes) -> int:
        """Return how many bytes at the beginning of `data` belong to the body."""
        size = min(self._length - self.num_bytes, len(data))
        self.num_bytes += size
        self.is_complete = self.num_bytes == self._length
        return size


class ChunkedBody:
    """The framing of a body that comes in chunks.

    Attributes:
        num_bytes: how much of the body has come, framing included.
        is_complete: whether all of it has.
    """

    __slots__ = ("_left", "_limits", "_line", "_num_trailers", "is_complete", "num_bytes")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.num_bytes = 0
        self.is_complete = False
        self._left = 0  # of a chunk with its line end
        self._line = b""  # the beginning of a line whose end has not come
        self._num_trailers = -1  # -1: not there yet
        self._limits = limits

    def take(self, data: bytes) -> int:
        """Return how many bytes at the beginning of `data` belong to the body.

        Raises:
            HttpInvalid: the framing is broken or longer than allowed.
        """
        at = 0
        while at < len(data) and not self.is_complete:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
            else:
                at = self._take_line(data, at)
        self.num_bytes += at
        return at

    def _take_line(self, data: bytes, at: int) -> int:
        """Read a line, or as much of it as is there; return where it ends in `data`."""
        end = data.find(b"\n", at) + 1
        stop = end or len(data)
        if len(self._line) + stop - at > self._limits.max_chunk_extension_bytes + _LINE_MARGIN:
            raise HttpInvalid("A line between the chunks of the body is too long; leave chunk extensions out.")
        self._line += data[at:stop]
        if end:
            line, self._line = self._line, b""
            self._end_line(line)
        return stop

    def _end_line(self, line: bytes) -> None:
        if self._num_trailers >= 0:
            self.is_complete = line == b"\r\n"
            self._num_trailers += 1
            if self._num_trailers > self._limits.max_headers:
                raise HttpInvalid(f"The body has more than {self._limits.max_headers} trailers; leave them out.")
            return
        match = _SIZE_LINE.fullmatch(line)
        if match is None or len(match[2] or b"") > self._limits.max_chunk_extension_bytes:
            raise HttpInvalid("A chunk of the body does not begin with its size, as a line of hexadecimal digits.")
        size = int(match[1], 16)
        if size:
            self._left = size + len(b"\r\n")
        else:
            self._num_trailers = 0


BodyFrame = DeclaredBody | ChunkedBody
"""Says where a body ends."""
