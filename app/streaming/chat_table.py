"""The tables of quire.v1: its states, the frames that are allowed in each, and its close codes.

`ChatProtocol` applies them; `docs/reference/websocket.md` is made from them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

PROTOCOL = "quire.v1"


class State(StrEnum):
    """The state of a connection, or of one of its streams."""

    GREETING = "greeting"  # the connection waits for `hello`
    READY = "ready"
    DRAINING = "draining"  # the server is shutting down
    CLOSED = "closed"
    UNKNOWN = "unknown"  # no open stream has this id
    STARTING = "starting"  # the request is being checked and submitted
    STREAMING = "streaming"
    PAUSED = "paused"  # generation is paused for the client


CONNECTION_STATES = (State.GREETING, State.READY, State.DRAINING)
STREAM_STATES = (State.UNKNOWN, State.STARTING, State.STREAMING, State.PAUSED)
OF_STREAMS = ("start", "resume", "credit", "cancel", "detach")
"""The client's frames of one stream; the states of the connection and of the stream must both allow them."""

_OPEN = (State.STREAMING, State.PAUSED)

TRANSITIONS: dict[tuple[State, str], State] = {
    (State.GREETING, "hello"): State.READY,
    **{(state, frame): state for state in (State.READY, State.DRAINING) for frame in (*OF_STREAMS, "ping", "pong")},
    (State.READY, "draining"): State.DRAINING,
    **{(state, "close"): State.CLOSED for state in CONNECTION_STATES},
    # Of a stream:
    (State.UNKNOWN, "start"): State.STARTING,
    (State.UNKNOWN, "resume"): State.STARTING,
    (State.STARTING, "credit"): State.STARTING,
    (State.STARTING, "cancel"): State.STARTING,
    (State.STARTING, "accepted"): State.STREAMING,
    (State.STARTING, "error"): State.UNKNOWN,
    **{(state, event): state for state in _OPEN for event in ("credit", "cancel", "progress", "delta", "finish")},
    **{(state, event): State.UNKNOWN for state in _OPEN for event in ("done", "error")},
    **{(state, "detach"): State.UNKNOWN for state in (State.STARTING, *_OPEN)},
    (State.STREAMING, "paused"): State.PAUSED,
    (State.PAUSED, "resumed"): State.STREAMING,
}
"""The allowed frames of a client and events of the server, with the next state; for other frames see `REJECTIONS`."""

CLOSE_BINARY = 1003
CLOSE_BAD_FRAMES = 1008
CLOSE_TOO_LARGE = 1009
CLOSE_RESTART = 1012
CLOSE_MALFORMED = 4400
CLOSE_UNAUTHENTICATED = 4401
CLOSE_SUBPROTOCOL = 4406
CLOSE_HELLO_TIMEOUT = 4408
CLOSE_DUPLICATE_ID = 4409
CLOSE_RATE = 4429
CLOSE_SLOW = 4499


class Rejection(NamedTuple):
    """The reaction to a frame that is not allowed now: a close code, 0 for an `error` frame, or None for nothing."""

    code: int | None
    reason: str


IGNORED = Rejection(None, "ignored")
NO_HELLO = Rejection(CLOSE_UNAUTHENTICATED, "the first frame must be hello")

REJECTIONS: dict[tuple[State, str], Rejection] = {
    **{(State.GREETING, frame): NO_HELLO for frame in (*OF_STREAMS, "ping", "pong")},
    **{(state, "hello"): Rejection(0, "hello was sent before") for state in (State.READY, State.DRAINING)},
    (State.UNKNOWN, "credit"): IGNORED,
    (State.UNKNOWN, "cancel"): IGNORED,
    (State.UNKNOWN, "detach"): IGNORED,
    **{
        (state, frame): Rejection(CLOSE_DUPLICATE_ID, f"{frame}: the id is in use")
        for state in (State.STARTING, *_OPEN)
        for frame in ("start", "resume")
    },
}  # fmt: skip
