"""What the server bears on the wire: the limits, who holds how many connections, and the answer that refuses.

What the application is asked has passed the guard: a head within its limits with one Host, and a body whose end is
beyond doubt. See `guard_head` and `guard_body` for the rules, `protocol` for who applies them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.error_response import error_response
from app.config.checks import is_loopback
from app.contract.errors import QuireError
from app.observe.log import log_request

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of a connection that are no settings; sizes in bytes, times in seconds."""

    max_head_bytes: int = 16 * KIB  # request line and headers, with their blank line
    max_headers: int = 64
    max_url_bytes: int = 8 * KIB
    max_handshake_bytes: int = 8 * KIB  # the head of a WebSocket: its library takes no longer lines
    max_declared_bytes: int = 2**31
    max_chunk_extension_bytes: int = 256
    max_held_bytes: int = 16 * KIB  # of further requests, before an answer is complete; then reading pauses
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    body_grace_s: float = 10.0  # before the rate counts
    min_body_rate: float = 1024.0  # bytes/s on average
    linger_s: float = 1.0  # for the client to read why it was refused
    close_timeout_s: float = 10.0  # for the client to answer the close frame of a WebSocket
    max_fragments: int = 1000  # of a WebSocket message
    max_pings_per_s: float = 50.0
    ping_burst: float = 50.0
    write_high_bytes: int = 4 * KIB  # above it, whoever writes waits
    write_low_bytes: int = 1 * KIB


@dataclass(slots=True)
class Peers:
    """Counts the open connections of each address; those of exempt addresses are not counted."""

    max_connections: int
    is_exempt: Callable[[str], bool] = is_loopback
    _counts: Counter[str] = field(default_factory=Counter)

    def enter(self, address: str | None) -> bool:
        """Count a connection, and say whether its address may have it; `leave` must follow in both cases."""
        if address is None or self.is_exempt(_plain(address)):
            return True
        self._counts[address] += 1
        return self._counts[address] <= self.max_connections

    def leave(self, address: str | None) -> None:
        """Count a connection no more."""
        if address is None or address not in self._counts:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    @property
    def num_open(self) -> int:
        """How many connections are counted, of all addresses."""
        return self._counts.total()


@dataclass(frozen=True, slots=True)
class Guard:
    """What all connections of a server share."""

    limits: ConnectionLimits
    peers: Peers


def refusal(
    error: QuireError,
    default_headers: Iterable[tuple[bytes, bytes]],
    *,
    client: tuple[str, int] | None,
    method: str | None = None,
    path: str | None = None,
    duration_s: float = 0.0,
) -> bytes:
    """Return the whole answer that refuses a request on the wire, after which its connection ends; leaves its line.

    For requests that the application never sees: the others it answers itself.
    """
    request_id = secrets.token_hex(16)
    log_request(
        request_id=request_id, client=client and client[0], method=method, path=path,
        status=error.http_status, reason=error.code, duration_ms=round(duration_s * 1000, 3),
    )  # fmt: skip
    answer = error_response(error.info())
    headers = [*default_headers, *answer.raw_headers, (b"x-request-id", request_id.encode())]
    lines = [name + b": " + value + b"\r\n" for name, value in headers if name != b"connection"]
    return b"".join([STATUS_LINE[error.http_status], *lines, b"connection: close\r\n\r\n", bytes(answer.body)])


def _plain(address: str) -> str:
    """The IPv4 address inside of a mapped one, which sockets for both families give."""
    return address.removeprefix("::ffff:")
