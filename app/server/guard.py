"""The guard of connections: limits, open connections per address, and the error response that ends a connection.

Requests reach the application only after the guard's checks: a head within the limits with exactly one Host, and a body
with an unambiguous end. The rules are in `guard_request`; `http_protocol` applies them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.http.error_response import shaped_response
from app.api.http.error_shape import ErrorShapes
from app.config.checks import is_loopback
from app.contract.errors import QuireError
from app.observe.request_log import RequestLog

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of a connection that are not settings; sizes in bytes, times in seconds."""

    max_head_bytes: int = 16 * KIB  # request line, headers and the blank line
    max_headers: int = 64
    max_url_bytes: int = 8 * KIB
    max_handshake_bytes: int = 8 * KIB  # of a WebSocket handshake: `websockets` accepts no longer lines
    max_declared_bytes: int = 2**31
    max_chunk_extension_bytes: int = 256
    max_chunks: int = 4000  # of a body: each takes 3 microseconds of the event loop, however small it is
    max_held_bytes: int = 16 * KIB  # of pipelined requests before the response is complete; then reading pauses
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_grace_s: float = 10.0  # before the minimum rate applies
    min_body_rate: float = 1024.0  # bytes/s on average
    linger_s: float = 1.0  # for the client to read the error before the connection closes
    close_timeout_s: float = 10.0  # for the client to answer the close frame of a WebSocket
    max_fragments: int = 1000  # of a WebSocket message
    max_pings_per_s: float = 50.0
    ping_burst: float = 50.0
    write_high_bytes: int = 4 * KIB  # above it, writers wait
    write_low_bytes: int = 1 * KIB


@dataclass(slots=True)
class Guard:
    """The limits of all connections of a server, and the counts of open ones by address; exempt ones do not count.

    `log` gets the requests that do not reach the application, and `shapes` are those of their errors.
    """

    limits: ConnectionLimits
    max_connections: int  # of one address
    is_exempt: Callable[[str], bool] = is_loopback
    log: RequestLog = field(default_factory=RequestLog)
    shapes: ErrorShapes = field(default_factory=ErrorShapes)
    counts: Counter[str] = field(default_factory=Counter)

    def enter(self, address: str | None) -> bool:
        """Count a connection; return whether its address may have it. `leave` must be called in both cases."""
        # Dual-stack sockets return IPv4 addresses as IPv4-mapped IPv6 addresses.
        if address is None or self.is_exempt(address.removeprefix("::ffff:")):
            return True
        self.counts[address] += 1
        return self.counts[address] <= self.max_connections

    def leave(self, address: str | None) -> None:
        """Stop counting a connection."""
        if address is None or address not in self.counts:
            return
        self.counts[address] -= 1
        if not self.counts[address]:
            del self.counts[address]

    def rejection(
        self,
        error: QuireError,
        default_headers: Iterable[tuple[bytes, bytes]],
        *,
        client: tuple[str, int] | None,
        method: str | None = None,
        path: str | None = None,
        duration_s: float = 0.0,
    ) -> bytes:
        """Return the bytes of an error response after which the connection closes, and log the request."""
        request_id = secrets.token_hex(16)
        self.log.write(
            request_id=request_id, client=client and client[0], method=method, path=path,
            status=error.http_status, reason=error.code, duration_ms=round(duration_s * 1000, 3),
        )  # fmt: skip
        response = shaped_response(error.info(), self.shapes.of(path or ""), request_id)
        headers = [*default_headers, *response.raw_headers, (b"x-request-id", request_id.encode())]
        lines = [name + b": " + value + b"\r\n" for name, value in headers if name != b"connection"]
        return b"".join([STATUS_LINE[error.http_status], *lines, b"connection: close\r\n\r\n", bytes(response.body)])
