"""What the driver of quire.v1 does for a client's frames, and the limits of what a client may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """The limits of one connection, and its timers."""

    max_frame_bytes: int = 4 * 2**20
    max_hello_bytes: int = 8 * 2**10
    max_streams: int = 32
    max_paused: int = 32  # streams that are paused for the client
    max_bad_frames: int = 10
    window: int = 256
    max_ttl_s: int = 3600  # of a stream; 0: no stream outlives its socket
    messages_per_s: float = 100
    messages_burst: float = 200
    credits_per_s: float = 10  # for each open stream
    credits_burst: float = 20
    pings_per_s: float = 50
    hello_timeout_s: float = 5.0
    stall_timeout_s: float = 30.0  # 0: disabled
    heartbeat_ms: int = 15_000


class Send(NamedTuple):
    """Send a control frame."""

    frame: str


class Start(NamedTuple):
    """Check and submit `request`, a JSON object; then call `accept`, or `fail` if the request is rejected.

    Each choice may be sent up to its token number `credit`. The stream is kept for `ttl_s` without a reader, 0: it ends
    with its socket. Under an `idempotency_key` the same request has one stream.
    """

    client_id: str
    request: bytes
    credit: int
    ttl_s: float = 0
    idempotency_key: str | None = None


class Resume(NamedTuple):
    """Read `stream` behind the positions `after`; then call `accept`, or `fail` if that cannot be.

    Each choice may be sent up to `credit` tokens behind its position.
    """

    client_id: str
    stream: str
    after: tuple[int, ...]
    credit: int


class GrantCredit(NamedTuple):
    """Choice i of a stream may be sent up to its token `upto[i]`; before `accept` the list may have any length."""

    client_id: str
    upto: tuple[int, ...]


class Cancel(NamedTuple):
    """Cancel the request of a stream; the stream continues until its `done`."""

    client_id: str


class Detach(NamedTuple):
    """Read a stream no longer, and send nothing more of it; it goes on if it is kept."""

    client_id: str


class Close(NamedTuple):
    """Close the connection, after the frames of earlier actions."""

    code: int
    reason: str


Action = Send | Start | Resume | GrantCredit | Cancel | Detach | Close
