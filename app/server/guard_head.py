"""Checks of a request's head for any route: bounded size, exactly one Host, and an unambiguous length of the body.

A request that two programs (a proxy and this server) could interpret differently is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.contract.errors import HeadersTooLarge, HttpInvalid, TransferEncodingUnknown, UrlTooLong
from app.server.guard import ConnectionLimits
from app.server.guard_body import BodyFrame, ChunkedBody, DeclaredBody

Header = tuple[bytes, bytes]
_DECISIVE = frozenset({b"host", b"content-length", b"transfer-encoding"})


def check_headers(headers: Sequence[Header], limits: ConnectionLimits) -> BodyFrame | None:
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


def url_too_long(limits: ConnectionLimits) -> UrlTooLong:
    """Return the error for a URL that is longer than allowed."""
    return UrlTooLong(f"The URL is longer than {limits.max_url_bytes} bytes; send long input in a body.")


def head_too_large(limits: ConnectionLimits) -> HeadersTooLarge:
    """Return the error for a head that is longer than allowed."""
    return HeadersTooLarge(f"The request's headers are larger than {limits.max_head_bytes} bytes; send shorter ones.")


def handshake_too_large(limits: ConnectionLimits) -> HeadersTooLarge:
    """Return the error for a WebSocket handshake that is longer than allowed."""
    return HeadersTooLarge(
        f"The headers of the WebSocket handshake are larger than {limits.max_handshake_bytes} bytes; send shorter ones."
    )


def _chunked(encodings: list[bytes], lengths: list[bytes], limits: ConnectionLimits) -> BodyFrame:
    if len(encodings) > 1 or encodings[0].lower() != b"chunked":
        raise TransferEncodingUnknown("The Transfer-Encoding is not supported; it must be `chunked`, sent once.")
    if lengths:
        raise HttpInvalid("The request has both Transfer-Encoding and Content-Length; send one of them.")
    return ChunkedBody(limits)


def _declared(lengths: list[bytes], limits: ConnectionLimits) -> BodyFrame | None:
    # 2^31 has ten digits; int() of much longer numbers would be slow.
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 10:
        raise HttpInvalid("Content-Length must be one number of bytes, sent once.")
    length = int(lengths[0])
    if length > limits.max_declared_bytes:
        raise HttpInvalid(f"Content-Length is {length}; it must be at most {limits.max_declared_bytes}.")
    return DeclaredBody(length) if length else None
