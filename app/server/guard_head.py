"""What a request's head must be, whatever it asks for: a bounded size, one Host, a body whose length is beyond doubt.

Where two programs could read a request differently (a proxy and this server), it is refused and not interpreted.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.contract.errors import HeadersTooLarge, HttpInvalid, TransferEncodingUnknown, UrlTooLong
from app.server.guard import ConnectionLimits
from app.server.guard_body import BodyFrame, ChunkedBody, DeclaredBody

Header = tuple[bytes, bytes]
_DECISIVE = frozenset({b"host", b"content-length", b"transfer-encoding"})


def check_headers(headers: Sequence[Header], limits: ConnectionLimits) -> BodyFrame | None:
    """Check the headers of a request (names in lower case) and return how its body is framed; None is no body.

    Raises:
        HeadersTooLarge: there are more than `max_headers`.
        TransferEncodingUnknown: the body is sent in another way than chunked.
        HttpInvalid: not exactly one Host, or the length of the body is in doubt.
    """
    if len(headers) > limits.max_headers:
        raise HeadersTooLarge(f"The request has {len(headers)} headers; at most {limits.max_headers} are allowed.")
    num_hosts = 0
    lengths: list[bytes] = []
    encodings: list[bytes] = []
    for name, value in headers:
        if name in _DECISIVE:  # one look-up for each of the others
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
    """Return the refusal of a request's target that is longer than allowed."""
    return UrlTooLong(f"The URL is longer than {limits.max_url_bytes} bytes; send long input in a body.")


def head_too_large(limits: ConnectionLimits) -> HeadersTooLarge:
    """Return the refusal of a head that is longer than allowed."""
    return HeadersTooLarge(f"The request's headers are larger than {limits.max_head_bytes} bytes; send less.")


def handshake_too_large(limits: ConnectionLimits) -> HeadersTooLarge:
    """Return the refusal of a WebSocket's head that is longer than allowed."""
    return HeadersTooLarge(
        f"The headers of the WebSocket handshake are larger than {limits.max_handshake_bytes} bytes; send less."
    )


def _chunked(encodings: list[bytes], lengths: list[bytes], limits: ConnectionLimits) -> BodyFrame:
    if len(encodings) > 1 or encodings[0].lower() != b"chunked":
        raise TransferEncodingUnknown("The only Transfer-Encoding that this server reads is `chunked`, sent once.")
    if lengths:
        raise HttpInvalid("The request has both Transfer-Encoding and Content-Length; send one of them.")
    return ChunkedBody(limits)


def _declared(lengths: list[bytes], limits: ConnectionLimits) -> BodyFrame | None:
    # Ten digits hold 2^31; what has more is no number that anybody means.
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 10:
        raise HttpInvalid("Content-Length must be one number of bytes, sent once.")
    length = int(lengths[0])
    if length > limits.max_declared_bytes:
        raise HttpInvalid(f"Content-Length is {length}; at most {limits.max_declared_bytes} can be read at all.")
    return DeclaredBody(length) if length else None
