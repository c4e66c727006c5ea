"""Checks of a request for any route: a head with exactly one Host, and a body with an unambiguous end.

A request that two programs (a proxy and this server) could interpret differently is rejected. The end of a body is
found independently of the parser: later bytes belong to the next request.

A chunked body has a line with a size (hexadecimal, optionally with an extension) before each chunk, size 0 for the
last one, then trailer lines up to an empty line. The parser limits neither the length of these lines nor the number of
chunks; this module does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.contract.errors import HeadersTooLarge, HttpInvalid, TransferEncodingUnknown
from app.server.guard import ConnectionLimits

Header = tuple[bytes, bytes]
_DECISIVE = frozenset({b"host", b"content-length", b"transfer-encoding"})
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(;[^\r\n]*)?\r\n")
_LINE_MARGIN = 16  # the size and the line's end, beside an extension


class DeclaredBody:
    """The framing of a body with a Content-Length of at least 1."""

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
    """The framing of a chunked body."""

    __slots__ = ("_left", "_limits", "_line", "_num_chunks", "_num_trailers", "is_complete", "num_bytes")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.num_bytes = 0
        self.is_complete = False
        self._num_chunks = 0
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
            self._num_chunks += 1
            if self._num_chunks > self._limits.max_chunks:
                raise HttpInvalid(f"The body has more than {self._limits.max_chunks:,} chunks; send larger ones.")
            self._left = size + len(b"\r\n")
        else:
            self._num_trailers = 0


BodyFraming = DeclaredBody | ChunkedBody
"""`num_bytes` of the body were received so far, framing included; `is_complete` says whether that is all of it."""


def check_headers(headers: Sequence[Header], limits: ConnectionLimits) -> BodyFraming | None:
    """Check the headers of a request (names in lower case) and return the framing of its body; None means no body.

    Raises:
        HeadersTooLarge: there are more than `max_headers`.
        TransferEncodingUnknown: Transfer-Encoding is not `chunked`.
        HttpInvalid: not exactly one Host, or the length of the body is ambiguous.
    """
    if len(headers) > limits.max_headers:
        raise HeadersTooLarge(f"The request has {len(headers)} headers; at most {limits.max_headers} are allowed.")
    num_hosts = 0
    lengths: list[bytes] = []
    encodings: list[bytes] = []
    for name, value in headers:
        if name in _DECISIVE:  # a single look-up for all other headers
            if name == b"host":
                num_hosts += 1
            else:
                (lengths if name == b"content-length" else encodings).append(value)
    if num_hosts != 1:
        raise HttpInvalid(f"The request has {num_hosts} Host headers; send exactly one.")
    if encodings:
        return _chunked(encodings, lengths, limits)
    return _declared(lengths, limits) if lengths else None


def _chunked(encodings: list[bytes], lengths: list[bytes], limits: ConnectionLimits) -> BodyFraming:
    if len(encodings) > 1 or encodings[0].lower() != b"chunked":
        raise TransferEncodingUnknown("The Transfer-Encoding is not supported; it must be `chunked`, sent once.")
    if lengths:
        raise HttpInvalid("The request has both Transfer-Encoding and Content-Length; send one of them.")
    return ChunkedBody(limits)


def _declared(lengths: list[bytes], limits: ConnectionLimits) -> BodyFraming | None:
    # 2^31 has ten digits; int() of much longer numbers would be slow.
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 10:
        raise HttpInvalid("Content-Length must be one number of bytes, sent once.")
    length = int(lengths[0])
    if length > limits.max_declared_bytes:
        raise HttpInvalid(f"Content-Length is {length}; it must be at most {limits.max_declared_bytes}.")
    return DeclaredBody(length) if length else None
