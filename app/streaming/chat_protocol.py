"""quire.v1, sans I/O: turns a client's frames into actions, and the events of streams into frames.

Rules of this file (the frames allowed in each state are in `chat_table`):
- `hello` comes first, once, and contains the key; any other frame before it closes the socket.
- The client's id names a stream from its `start` or `resume` until its one `done` or `error`, or until `detach`; then
  the id may be used again.
- Tokens are numbered per choice, 1, 2, 3 ... without gaps: the engine's numbers are sent unchanged.
- Errors of one stream are `error` frames; only errors of the connection close it.
- Frames about unknown or ended ids are ignored: the client may not have received the end yet.
- Until `hello` is accepted, frames are short: a client without a key cannot make the loop parse large ones.
- `request` is not parsed here: it may be long, and is checked like a body that came over HTTP.
- Unknown fields are ignored, an unknown `t` is an `error`; many bad frames in a row close the socket.
- An `error` for a bad frame contains the client's id only if no stream of that id is open, because an `error` with an
  open id ends that stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from app.contract.errors import ErrorInfo, InvalidValue, RateLimitExceeded, RequestError
from app.contract.events import Finished, Progress, TokenDelta, Usage
from app.runtime.clock import Clock, monotonic
from app.runtime.token_bucket import TokenBucket
from app.streaming import chat_frames, chat_table
from app.streaming.chat_actions import (
    Action,
    Cancel,
    ChatLimits,
    Close,
    Detach,
    GrantCredit,
    Resume,
    Send,
    Start,
)
from app.streaming.chat_frames import Accepted, Entries, ToolPieces, read_frame
from app.streaming.chat_table import IGNORED, NO_HELLO, REJECTIONS, TRANSITIONS, Rejection, State
from app.streaming.kept.idempotency_keys import KEY_RULE, is_idempotency_key
from app.streaming.kept.kept_streams import MAX_TTL_S
from app.streaming.stream_timings import StreamTimings

MAX_ID_LENGTH = 64
MAX_CREDIT = 2**53 - 1  # the largest integer that is exact in every JSON reader
MAX_CHOICES = 128


@dataclass(slots=True)
class _Stream:
    """One open stream: its state, the rate limit of its credit frames, and the last number sent of each choice."""

    grants: TokenBucket
    state: State = State.STARTING
    num_choices: int | None = None
    last_numbers: dict[int, int] = field(default_factory=dict)


class ChatProtocol:
    """The server's side of one connection. `receive` raises no exception, whatever a client sends.

    `check_key` is called with the key of `hello` (or None). The methods that return a stream's frames assert that the
    transition table allows them.

    Attributes:
        state: the state of the connection.
    """

    def __init__(self, check_key: Callable[[str | None], bool], limits: ChatLimits, clock: Clock = monotonic) -> None:
        self._check_key = check_key
        self._limits = limits
        self._clock = clock
        self.state = State.GREETING
        self._streams: dict[str, _Stream] = {}
        self._num_bad_frames = 0
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_burst, clock)
        self._pings = TokenBucket(limits.pings_per_s, limits.pings_per_s, clock)

    # --- The client's frames ---------------------------------------------------------------------------------

    def receive(self, text: str) -> list[Action]:
        """Process one text frame and return the actions to take, in order."""
        if self.state is State.CLOSED:
            return []
        max_bytes = self._limits.max_hello_bytes
        if self.state is State.GREETING and (len(text) > max_bytes or len(text.encode(errors="replace")) > max_bytes):
            return self._close(chat_table.CLOSE_TOO_LARGE, f"a frame before hello has at most {max_bytes} bytes")
        try:
            frame = read_frame(text)
        except ValueError:
            return self._close(chat_table.CLOSE_MALFORMED, "a frame must be one JSON object")
        if not isinstance(frame.get("t"), str):
            return self._close(chat_table.CLOSE_MALFORMED, "a frame must be a JSON object with its type in `t`")
        if not self._bucket_of(frame).take():
            return self._close(chat_table.CLOSE_RATE, "too many messages per second")
        try:
            actions = self._handle(frame)
        except RequestError as error:
            return self._count_bad_frame(frame, error)
        self._num_bad_frames = 0
        return actions

    def receive_binary(self) -> list[Action]:
        """Reject a binary frame."""
        return self._close(chat_table.CLOSE_BINARY, "this protocol has text frames only")

    def time_out(self) -> list[Action]:
        """Close the connection if `hello` has not come; call it after the timeout."""
        return self._close(chat_table.CLOSE_HELLO_TIMEOUT, "no hello in time") if self.state is State.GREETING else []

    def end(self) -> None:
        """Note that the connection has ended: frames are ignored, and no key is checked any more. Idempotent."""
        self.state = State.CLOSED
        self._check_key = lambda _: False

    def _bucket_of(self, frame: dict[str, Any]) -> TokenBucket:
        """Return the rate limit of a frame: that of the connection, or of an open stream for its credit."""
        client_id = frame.get("id")
        if frame["t"] == "credit" and isinstance(client_id, str) and client_id in self._streams:
            return self._streams[client_id].grants
        return self._messages

    def _handle(self, frame: dict[str, Any]) -> list[Action]:
        kind = frame["t"]
        if kind not in _HANDLERS or (self.state, kind) not in TRANSITIONS:
            names = ", ".join(name for name in _HANDLERS if name != "hello")
            unknown = Rejection(0, f"t is {kind[:MAX_ID_LENGTH]!r}; it must be one of {names}.")
            default = NO_HELLO if self.state is State.GREETING else unknown
            return self._reject(REJECTIONS.get((self.state, kind), default), "t")
        if kind in chat_table.OF_STREAMS:
            state = self._state_of(_client_id(frame))
            if (state, kind) not in TRANSITIONS:
                return self._reject(REJECTIONS[state, kind], "id")
        return _HANDLERS[kind](self, frame)

    def _reject(self, rejection: Rejection, param: str) -> list[Action]:
        if rejection is IGNORED:
            return []
        if not rejection.code:
            raise InvalidValue(rejection.reason, param=param)
        return self._close(rejection.code, rejection.reason)

    def _hello(self, frame: dict[str, Any]) -> list[Action]:
        if frame.get("protocol") != chat_table.PROTOCOL:
            return self._close(chat_table.CLOSE_SUBPROTOCOL, f"hello.protocol must be {chat_table.PROTOCOL}")
        key = frame.get("key")
        if not (key is None or isinstance(key, str)) or not self._check_key(key):
            return self._close(chat_table.CLOSE_UNAUTHENTICATED, "the API key is missing or wrong")
        self.state = TRANSITIONS[self.state, "hello"]
        own, max_bytes = self._limits, self._limits.max_frame_bytes
        sizes = {"max_streams": own.max_streams, "max_frame": max_bytes, "max_request_bytes": max_bytes}
        limits = {**sizes, "window": own.window, "ttl_s": own.max_ttl_s}
        return [Send(chat_frames.make("welcome", server="quire", limits=limits, heartbeat_ms=own.heartbeat_ms))]

    def _count_bad_frame(self, frame: dict[str, Any], error: RequestError) -> list[Action]:
        self._num_bad_frames += 1
        is_last = self._num_bad_frames >= self._limits.max_bad_frames
        client_id = frame.get("id")
        is_free = _is_id(client_id) and client_id not in self._streams
        reply = Send(chat_frames.error(client_id if is_free else None, error.info(), is_fatal=is_last))
        return [reply, *(self._close(chat_table.CLOSE_BAD_FRAMES, "too many bad frames in a row") if is_last else [])]

    def _start(self, frame: dict[str, Any]) -> list[Action]:
        client_id, request, credit = frame["id"], frame.get("request"), self._first_credit(frame)
        if request is None or not request.startswith(b"{"):
            raise InvalidValue("start.request must be an object: the body of a chat completion.", param="request")
        ttl_s, key = frame.get("ttl_s"), frame.get("idempotency_key")
        if not (ttl_s is None or (_is_number(ttl_s) and 0 <= ttl_s <= MAX_TTL_S)):
            raise InvalidValue(f"start.ttl_s must be a number of seconds from 0 to {MAX_TTL_S}.", param="ttl_s")
        if not (key is None or (isinstance(key, str) and is_idempotency_key(key))):
            raise InvalidValue(f"start.idempotency_key must be {KEY_RULE}.", param="idempotency_key")
        return self._open(client_id, Start(client_id, request, credit, ttl_s or 0, key))

    def _resume(self, frame: dict[str, Any]) -> list[Action]:
        client_id, stream, credit = frame["id"], frame.get("stream"), self._first_credit(frame)
        if not isinstance(stream, str):
            raise InvalidValue("resume.stream must be a text: the `stream` of an `accepted` frame.", param="stream")
        if not (after := _token_numbers(frame.get("after"))):
            raise InvalidValue(
                "resume.after must be a list of positions: an integer, at least 0, for each choice.", param="after"
            )
        return self._open(client_id, Resume(client_id, stream, after, credit))

    def _first_credit(self, frame: dict[str, Any]) -> int:
        credit = frame.get("credit")
        if credit is None:
            return self._limits.window
        if not _is_token_number(credit):
            raise InvalidValue(
                f"{frame['t']}.credit must be a number of tokens: an integer, at least 0.", param="credit"
            )
        return int(credit)

    def _open(self, client_id: str, action: Start | Resume) -> list[Action]:
        if len(self._streams) >= self._limits.max_streams:
            full = RateLimitExceeded(f"{len(self._streams)} streams are open, no more are allowed; end one first.")
            return [Send(chat_frames.error(client_id, full.info()))]
        bucket = TokenBucket(self._limits.credits_per_s, self._limits.credits_burst, self._clock)
        self._streams[client_id] = _Stream(bucket)
        return [action]

    def _detach(self, frame: dict[str, Any]) -> list[Action]:
        self._transition(frame["id"], "detach")
        return [Detach(frame["id"])]

    def _credit(self, frame: dict[str, Any]) -> list[Action]:
        client_id, numbers = frame["id"], _token_numbers(frame.get("upto"))
        num_choices = self._streams[client_id].num_choices
        if not numbers or num_choices not in (None, len(numbers)):
            raise InvalidValue(
                "credit.upto must be a list of token numbers: an integer, at least 0, for each choice.", param="upto"
            )
        return [GrantCredit(client_id, numbers)]

    def _ping(self, frame: dict[str, Any]) -> list[Action]:
        if not self._pings.take():
            return self._close(chat_table.CLOSE_RATE, "too many pings per second")
        ts = frame.get("ts")
        if not (ts is None or _is_number(ts)):
            raise InvalidValue("ping.ts must be a number.", param="ts")
        return [Send(chat_frames.make("pong", ts=ts))]

    def _close(self, code: int, reason: str) -> list[Action]:
        if self.state is State.CLOSED:
            return []
        self.state = TRANSITIONS[self.state, "close"]
        self._streams.clear()
        return [Close(code, reason)]

    # --- The server's frames ---------------------------------------------------------------------------------

    def accept(self, client_id: str, accepted: Accepted) -> str:
        """Note that a stream is read; return its `accepted`."""
        opened = self._transition(client_id, "accepted")
        opened.num_choices = len(accepted.after)
        opened.last_numbers = dict(enumerate(accepted.last_numbers))
        return chat_frames.accepted(client_id, accepted)

    def send(
        self,
        client_id: str,
        event: TokenDelta | Finished | Progress,
        entries: Entries | None = None,
        *,
        reasoning: str = "",
        tool: ToolPieces = (),
    ) -> str:
        """Return the frame of one event of a stream; `entries`, `reasoning` and `tool` belong to a delta."""
        if isinstance(event, TokenDelta):
            stream = self._transition(client_id, "delta")
            stream.last_numbers[event.choice] = event.first + len(event.token_ids) - 1
            return chat_frames.delta(client_id, event, entries, reasoning=reasoning, tool=tool)
        if isinstance(event, Finished):
            stream = self._transition(client_id, "finish")
            last = stream.last_numbers.get(event.choice, 0)
            ended: dict[str, object] = {"finish_reason": event.reason}
            if event.end.stop_reason is not None:
                ended["stop_reason"] = event.end.stop_reason
            return chat_frames.make("finish", id=client_id, i=event.choice, n=last, **ended)
        self._transition(client_id, "progress")
        fields: dict[str, object] = {"phase": event.phase, "done": event.done, "total": event.total}
        if event.ahead is not None:
            fields["ahead"] = event.ahead
        return chat_frames.make("progress", id=client_id, **fields)

    def pause(self, client_id: str) -> str | None:
        """Note that generation is paused for the client; return `paused`, or None if the stream is over."""
        return self._transition_if_open(client_id, "paused")

    def resume(self, client_id: str) -> str | None:
        """Note that generation continues; return `resumed`, or None if the stream is over."""
        return self._transition_if_open(client_id, "resumed")

    def finish(self, client_id: str, usage: Usage, timings: StreamTimings, reasoning_tokens: int | None = None) -> str:
        """Return the `done` of a stream whose choices have all ended."""
        self._transition(client_id, "done")
        return chat_frames.done(client_id, usage, timings, reasoning_tokens)

    def fail(self, client_id: str, info: ErrorInfo) -> str:
        """Return the `error` of a stream that has failed or was rejected."""
        self._transition(client_id, "error")
        return chat_frames.error(client_id, info)

    def drain(self, deadline_ms: int) -> str | None:
        """Note that the server is shutting down; return `draining`, or None before `hello` was accepted."""
        if (self.state, "draining") not in TRANSITIONS:
            return None
        self.state = TRANSITIONS[self.state, "draining"]
        return chat_frames.make("draining", deadline_ms=deadline_ms)

    def heartbeat(self) -> str:
        """Return a `ping`."""
        return chat_frames.make("ping", ts=int(self._clock() * 1000))

    def _state_of(self, client_id: str) -> State:
        stream = self._streams.get(client_id)
        return State.UNKNOWN if stream is None else stream.state

    def _transition_if_open(self, client_id: str, event: str) -> str | None:
        if (self._state_of(client_id), event) not in TRANSITIONS:
            return None
        self._transition(client_id, event)
        return chat_frames.make(event, id=client_id)

    def _transition(self, client_id: str, event: str) -> _Stream:
        state = self._state_of(client_id)
        after = TRANSITIONS.get((state, event))
        assert after is not None, f"{event} for a stream that is {state}"
        stream = self._streams[client_id] if after is not State.UNKNOWN else self._streams.pop(client_id)
        stream.state = after
        return stream


def _is_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID_LENGTH


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _token_numbers(value: object) -> tuple[int, ...]:
    """Return the numbers of a list with one for each choice; none if it is anything else."""
    if isinstance(value, list) and len(value) <= MAX_CHOICES and all(map(_is_token_number, value)):
        return tuple(value)
    return ()


def _is_token_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_CREDIT


def _client_id(frame: dict[str, Any]) -> str:
    client_id = frame.get("id")
    if not _is_id(client_id):
        raise InvalidValue(f"{frame['t']}.id must be a text of 1 to {MAX_ID_LENGTH} characters.", param="id")
    return client_id


# Functions and no methods of an object, which would refer to itself by them and wait for the collector.
_HANDLERS: Mapping[str, Callable[[ChatProtocol, dict[str, Any]], list[Action]]] = {
    "hello": ChatProtocol._hello,
    "start": ChatProtocol._start,
    "resume": ChatProtocol._resume,
    "credit": ChatProtocol._credit,
    "cancel": lambda _, frame: [Cancel(frame["id"])],
    "detach": ChatProtocol._detach,
    "ping": ChatProtocol._ping,
    "pong": lambda _, frame: [],
}
