"""quire.v1, sans I/O: frames of a client go in, actions come out; events of streams go in, frames come out.

Rules of this file
- `hello` comes first, once, and brings the key; every other frame before it closes the socket.
- A stream is known by the client's id from its `start` until its one `done` or `error`; then the id may be used again.
- Tokens are numbered per choice, 1, 2, 3 ... without gaps: the engine's numbers go out as they are.
- What concerns one stream is an `error` frame; only what concerns the connection closes it.
- Frames about ids that are unknown or have ended are ignored: the client could not know yet.
- Unknown fields are ignored, an unknown `t` is an `error`; many bad frames in a row close the socket.
- An `error` for a bad frame names the client's id only while no stream of that id is open, since an `error` with an
  open id is that stream's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import orjson

from app.clock import Clock, monotonic
from app.errors import ErrorInfo, InvalidValue, RateLimitExceeded, RequestError
from app.messages import EngineEvent, Finished, TokenDelta, Usage
from app.streaming import chat_frames
from app.streaming.rate_limit import TokenBucket
from app.streaming.session import StreamTimings

PROTOCOL = "quire.v1"
MAX_ID_LENGTH = 64

CLOSE_BINARY = 1003
CLOSE_BAD_FRAMES = 1008
CLOSE_MALFORMED = 4400
CLOSE_UNAUTHENTICATED = 4401
CLOSE_SUBPROTOCOL = 4406
CLOSE_HELLO_TIMEOUT = 4408
CLOSE_DUPLICATE_ID = 4409
CLOSE_RATE = 4429


class State(Enum):
    """Where a connection or one of its streams stands."""

    GREETING = "greeting"  # the connection waits for `hello`
    READY = "ready"
    CLOSED = "closed"
    UNKNOWN = "unknown"  # no stream has this id: never had, or it has ended
    STARTING = "starting"  # the request is being checked and submitted
    STREAMING = "streaming"


# What may happen, by whom: a client's frame (the first block of each), or the server's own doing.
TRANSITIONS: dict[tuple[State, str], State] = {
    (State.GREETING, "hello"): State.READY,
    (State.READY, "start"): State.READY,
    (State.READY, "cancel"): State.READY,
    (State.READY, "ping"): State.READY,
    (State.READY, "pong"): State.READY,
    (State.GREETING, "close"): State.CLOSED,
    (State.READY, "close"): State.CLOSED,
    #
    (State.UNKNOWN, "start"): State.STARTING,
    (State.STARTING, "cancel"): State.STARTING,
    (State.STREAMING, "cancel"): State.STREAMING,
    (State.STARTING, "accepted"): State.STREAMING,
    (State.STARTING, "error"): State.UNKNOWN,
    (State.STREAMING, "delta"): State.STREAMING,
    (State.STREAMING, "finish"): State.STREAMING,
    (State.STREAMING, "done"): State.UNKNOWN,
    (State.STREAMING, "error"): State.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """What one connection may do, and its timers."""

    max_frame_bytes: int = 4 * 2**20
    max_streams: int = 32
    max_bad_frames: int = 10
    messages_per_s: float = 100
    messages_burst: float = 200
    pings_per_s: float = 50
    hello_timeout_s: float = 5.0
    heartbeat_ms: int = 15_000


class Send(NamedTuple):
    """Send a control frame."""

    frame: str


class Start(NamedTuple):
    """Check and submit `request`, then call `accept`, or `fail` if it is refused."""

    client_id: str
    request: dict[str, Any]


class Cancel(NamedTuple):
    """End a stream in the engine; it goes on until its `done`."""

    client_id: str


class Close(NamedTuple):
    """Close the connection after the frames before it."""

    code: int
    reason: str


Action = Send | Start | Cancel | Close


class ChatProtocol:
    """The server's side of one connection. `receive` never raises, whatever a client sends.

    `check_key` is asked with the key of `hello` (or None). The methods that speak for a stream assert that the
    transition table allows it: a driver that breaks the order of a stream has a bug.
    """

    def __init__(
        self,
        check_key: Callable[[str | None], bool],
        limits: ChatLimits | None = None,
        clock: Clock = monotonic,
        server: str = "quire",
    ) -> None:
        self._check_key = check_key
        self._limits = limits or ChatLimits()
        self._clock = clock
        self._server = server
        self._state = State.GREETING
        self._streams: dict[str, State] = {}
        self._last_numbers: dict[tuple[str, int], int] = {}
        self._num_bad_frames = 0
        self._messages = TokenBucket(self._limits.messages_per_s, self._limits.messages_burst, clock)
        self._pings = TokenBucket(self._limits.pings_per_s, self._limits.pings_per_s, clock)
        self._handlers: dict[str, Callable[[dict[str, Any]], list[Action]]] = {
            "start": self._start,
            "cancel": self._cancel,
            "ping": self._ping,
            "pong": lambda frame: [],
        }

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._state

    # --- The client speaks ---------------------------------------------------------------------------------------

    def receive(self, text: str) -> list[Action]:
        """Take one text frame and return what is to be done, in order."""
        if self._state is State.CLOSED:
            return []
        if not self._messages.take():
            return self._close(CLOSE_RATE, "too many messages per second")
        try:
            frame = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self._close(CLOSE_MALFORMED, "a frame must be one JSON object")
        if not isinstance(frame, dict) or not isinstance(frame.get("t"), str):
            return self._close(CLOSE_MALFORMED, "a frame must be a JSON object with its type in `t`")
        if self._state is State.GREETING:
            return self._greet(frame)
        return self._obey(frame)

    def receive_binary(self) -> list[Action]:
        """Refuse a binary frame."""
        return self._close(CLOSE_BINARY, "this protocol has text frames only")

    def time_out(self) -> list[Action]:
        """The time for `hello` is over."""
        return self._close(CLOSE_HELLO_TIMEOUT, "no hello in time") if self._state is State.GREETING else []

    def _greet(self, frame: dict[str, Any]) -> list[Action]:
        if frame["t"] != "hello":
            return self._close(CLOSE_UNAUTHENTICATED, "the first frame must be hello")
        if frame.get("protocol") != PROTOCOL:
            return self._close(CLOSE_SUBPROTOCOL, f"hello.protocol must be {PROTOCOL}")
        key = frame.get("key")
        if not (key is None or isinstance(key, str)) or not self._check_key(key):
            return self._close(CLOSE_UNAUTHENTICATED, "the API key is missing or wrong")
        self._state = TRANSITIONS[self._state, "hello"]
        limits = {
            "max_streams": self._limits.max_streams,
            "max_frame": self._limits.max_frame_bytes,
            "max_request_bytes": self._limits.max_frame_bytes,
        }
        return [Send(chat_frames.welcome(self._server, limits, self._limits.heartbeat_ms))]

    def _obey(self, frame: dict[str, Any]) -> list[Action]:
        try:
            if frame["t"] not in self._handlers:
                raise InvalidValue(
                    f"t is {frame['t'][:MAX_ID_LENGTH]!r}; it must be one of {', '.join(self._handlers)}.", param="t"
                )
            actions = self._handlers[frame["t"]](frame)
        except RequestError as error:
            return self._reject(frame, error)
        self._num_bad_frames = 0
        return actions

    def _reject(self, frame: dict[str, Any], error: RequestError) -> list[Action]:
        self._num_bad_frames += 1
        is_last = self._num_bad_frames >= self._limits.max_bad_frames
        client_id = frame.get("id")
        is_free = _is_id(client_id) and client_id not in self._streams
        actions: list[Action] = [
            Send(chat_frames.error(client_id if is_free else None, error.info(), is_fatal=is_last))
        ]
        return actions + (self._close(CLOSE_BAD_FRAMES, "too many bad frames in a row") if is_last else [])

    def _start(self, frame: dict[str, Any]) -> list[Action]:
        client_id = _client_id(frame)
        if (self._state_of(client_id), "start") not in TRANSITIONS:
            return self._close(CLOSE_DUPLICATE_ID, "start: the id is in use")
        request = frame.get("request")
        if not isinstance(request, dict):
            raise InvalidValue("start.request must be an object: the body of a chat completion.", param="request")
        if len(self._streams) >= self._limits.max_streams:
            full = RateLimitExceeded(f"{len(self._streams)} streams are open, no more are allowed; end one first.")
            return [Send(chat_frames.error(client_id, full.info()))]
        self._streams[client_id] = TRANSITIONS[State.UNKNOWN, "start"]
        return [Start(client_id, request)]

    def _cancel(self, frame: dict[str, Any]) -> list[Action]:
        client_id = _client_id(frame)
        return [Cancel(client_id)] if (self._state_of(client_id), "cancel") in TRANSITIONS else []

    def _ping(self, frame: dict[str, Any]) -> list[Action]:
        if not self._pings.take():
            return self._close(CLOSE_RATE, "too many pings per second")
        ts = frame.get("ts")
        if not (ts is None or (isinstance(ts, (int, float)) and not isinstance(ts, bool))):
            raise InvalidValue("ping.ts must be a number.", param="ts")
        return [Send(chat_frames.pong(ts))]

    def _close(self, code: int, reason: str) -> list[Action]:
        if self._state is State.CLOSED:
            return []
        self._state = TRANSITIONS[self._state, "close"]
        self._streams.clear()
        self._last_numbers.clear()
        return [Close(code, reason)]

    # --- The streams speak ---------------------------------------------------------------------------------------

    def accept(self, client_id: str, stream: str, model: str) -> str:
        """The engine has taken the request of a `Start`; return the frame that says so."""
        self._move(client_id, "accepted")
        return chat_frames.accepted(client_id, stream, model)

    def tell(self, client_id: str, events: Sequence[EngineEvent]) -> list[str]:
        """Return the frames of a stream's deltas and finished choices; `fail` tells of a failure."""
        frames = []
        for event in events:
            if isinstance(event, TokenDelta):
                self._move(client_id, "delta")
                self._last_numbers[client_id, event.choice] = event.first + len(event.token_ids) - 1
                frames.append(chat_frames.delta(client_id, event))
            elif isinstance(event, Finished):
                self._move(client_id, "finish")
                last = self._last_numbers.pop((client_id, event.choice), 0)
                frames.append(chat_frames.finish(client_id, event.choice, last, event.reason))
        return frames

    def finish(self, client_id: str, usage: Usage, timings: StreamTimings) -> str:
        """Every choice of a stream has ended; return its `done`."""
        self._move(client_id, "done")
        return chat_frames.done(client_id, usage, timings)

    def fail(self, client_id: str, info: ErrorInfo) -> str:
        """A stream cannot go on, or could not begin; return its `error`."""
        self._move(client_id, "error")
        for key in [key for key in self._last_numbers if key[0] == client_id]:
            del self._last_numbers[key]
        return chat_frames.error(client_id, info)

    def heartbeat(self) -> str:
        """Return a `ping`."""
        return chat_frames.ping(int(self._clock() * 1000))

    def _state_of(self, client_id: str) -> State:
        return self._streams.get(client_id, State.UNKNOWN)

    def _move(self, client_id: str, event: str) -> None:
        state = self._state_of(client_id)
        assert (state, event) in TRANSITIONS, f"{event} for a stream that is {state.value}"
        after = TRANSITIONS[state, event]
        if after is State.UNKNOWN:
            del self._streams[client_id]
        else:
            self._streams[client_id] = after


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID_LENGTH


def _client_id(frame: dict[str, Any]) -> str:
    client_id = frame.get("id")
    if not isinstance(client_id, str) or not _is_id(client_id):
        raise InvalidValue(f"{frame['t']}.id must be a text of 1 to {MAX_ID_LENGTH} characters.", param="id")
    return client_id
