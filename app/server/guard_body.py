"""Finds the end of a request's body, independently of the parser: later bytes belong to the next request.

A chunked body has a line with a size (hexadecimal, optionally with an extension) before each chunk, size 0 for the
last one, then trailer lines up to an empty line. The parser does not limit the length of these lines; this module does.
"""

from __future__ import annotations

import re

from app.contract.errors import HttpInvalid
from app.server.guard import ConnectionLimits

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(;[^\r\n]*)?\r\n")
_LINE_MARGIN = 16  # the size and the line's end, beside an extension


class DeclaredBody:
    """The framing of a body with a Content-Length of at least 1.

    Attributes:
        num_bytes: bytes of the body received so far.
        is_complete: whether the whole body was received.
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
    """The framing of a chunked body.

    Attributes:
        num_bytes: bytes of the body received so far, framing included.
        is_complete: whether the whole body was received.
    """

    __slots__ = ("_left", "_limits", "_line", "_num_trailers", "is_complete", "num_bytes")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.num_bytes = 0
        self.is_complete = False
        self._left = 0  # of a chunk with its line end
        self._line = b""  # the beginning of an incomplete line
        self._num_trailers = -1  # -1: the last chunk was not received yet
        self._limits = limits

    def take(self, data: bytes) -> int:
        """Return how many bytes at the beginning of `data` belong to the body.

        Raises:
            HttpInvalid: the framing is malformed or longer than allowed.
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
        """Read a line or a part of it; return its end in `data`."""
        end = data.find(b"\n", at) + 1
        stop = end or len(data)
        if len(self._line) + stop - at > self._limits.max_chunk_extension_bytes + _LINE_MARGIN:
            raise HttpInvalid("A line between the chunks of the body is too long; leave out chunk extensions.")
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
            raise HttpInvalid("A chunk of the body is malformed; it must begin with a line with its hexadecimal size.")
        size = int(match[1], 16)
        if size:
            self._left = size + len(b"\r\n")
        else:
            self._num_trailers = 0


BodyFrame = DeclaredBody | ChunkedBody
"""Finds the end of a body."""
