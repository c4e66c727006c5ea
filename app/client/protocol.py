"""The client's side of quire.v1, sans I/O: takes frames of the server, and returns frames to send.

Rules of this file (the frames: docs/reference/websocket.md):
- Credit follows the reader, not the socket: it is granted when at most half of the window is left, at most ten times a
  second for each stream, and not for a stream that is not read or was cancelled.
- Therefore at most a window of unread tokens of each choice is buffered here.
- Deltas that were received before (`n` is not above the last number) and frames with unknown or ended ids are ignored.
- A stream with a key outlives its connection: it is resumed behind the last received number, or, if the server had not
  accepted it, sent again with the same key. One that was cancelled is cancelled again: the server may not know.
- A stream that cannot go on yet waits to be resumed later: it has too many readers (those whose connections were lost
  count until the server has noticed), or its server is being started again.

The chat page's `stream.js` and `protocol.js` follow the same rules; `tests/vectors/quire_v1.json` tests both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from app.contract.errors import Draining, ModelLoading, RateLimitExceeded
from app.contract.events import ChoiceEnd

PROTOCOL = "quire.v1"
WINDOW = 256  # tokens that the protocol allows without credit; used if the server's welcome has no window
CREDIT_EVERY_S = 0.1
TTL_S = 300  # how long the server keeps an answer that nobody reads
_LATER = (RateLimitExceeded.code, ModelLoading.code, Draining.code)

Frame = dict[str, Any]


class ClientState(StrEnum):
    """The state of a stream, according to the received frames."""

    WAITING = "waiting"
    STREAMING = "streaming"
    PAUSED = "paused"  # the server generates nothing until more is read
    DONE = "done"
    ERROR = "error"
    DISCONNECTED = "disconnected"  # the connection ended before the stream


class ChatEvent(NamedTuple):
    """A delta of one choice: number of its first token, number of tokens, their text, OpenAI logprobs entries.

    `reasoning` is text of the model's reasoning, `tool` what the delta has of calls (see the frame `delta`).
    """

    choice: int
    first: int
    num_tokens: int
    text: str
    logprobs: list[dict[str, Any]] | None
    reasoning: str = ""
    tool: list[dict[str, Any]] | None = None


class ClientStream:
    """One answer: received deltas, and how far they have been read.

    `window` is the number of tokens of each choice that may be unread. `key` makes the server keep the answer, if it
    does so: it outlives the connection.

    Attributes:
        id: the client's id of the stream.
        request: the body of the request.
        key: names the request if it is sent again.
        state: the state of the stream.
        stream_id, model: the server's id and the model's name, once the request is accepted.
        progress: the last `progress` frame; None while the answer is generating tokens.
        is_away: whether the stream waits to be resumed: `ClientProtocol.resume` has its next frame.
        num_refused: how often this connection could not let it go on.
        ends: why the choices have ended that have.
        usage, timings: the server's counts and times, once the stream is done.
        failure: the `error` frame that ended the stream.
    """

    def __init__(self, client_id: str, request: Mapping[str, Any], window: int, key: str | None = None) -> None:
        count = request.get("n")
        num_choices = count if isinstance(count, int) and count >= 1 else 1  # the server rejects other values
        self.id = client_id
        self.request = request
        self.key = key
        self.state = ClientState.WAITING
        self.stream_id: str | None = None
        self.model: str | None = None
        self.progress: Frame | None = None
        self.is_away = False
        self.num_refused = 0
        self.ends: dict[int, ChoiceEnd] = {}
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, float] | None = None
        self.failure: Frame | None = None
        self._is_kept = self._is_again = False
        self._window = window
        self._unread: deque[ChatEvent] = deque()
        self._received = [0] * num_choices  # number of the last received token of each choice
        self._taken = [0] * num_choices
        self._read = [0] * num_choices
        self._allowed = [window] * num_choices
        self._credit_at: float | None = None
        self._is_cancelled = False

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended."""
        return self.state in (ClientState.DONE, ClientState.ERROR, ClientState.DISCONNECTED)

    def receive(self, frame: Frame) -> None:
        """Process a frame of this stream."""
        kind = frame["t"]
        if kind == "delta":
            self._add(frame)
        elif kind == "accepted":
            self.stream_id, self.model = frame["stream"], frame["model"]
            self._is_kept = frame.get("ttl_s", 0) > 0
            self.num_refused = 0
            self._is_again = False
        elif kind == "progress":
            self.progress = None if frame["phase"] == "decode" else frame
        elif kind == "paused":
            self.state = ClientState.PAUSED
        elif kind == "resumed":
            self.state = ClientState.STREAMING if any(self._received) else ClientState.WAITING
        elif kind == "finish":
            self.ends[frame["i"]] = ChoiceEnd(frame["finish_reason"], frame.get("stop_reason"))
        elif kind == "done":
            self.usage, self.timings = frame["usage"], frame["timings"]
            self._end(ClientState.DONE)
        elif kind == "error" and self._is_again and frame["code"] in _LATER:
            self.num_refused += 1
            self.is_away = True
        elif kind == "error":
            self.failure = frame
            self._end(ClientState.ERROR)

    def take(self) -> ChatEvent | None:
        """Return the next unread delta, or None; it counts as read with the next `credit_frame`."""
        if not self._unread:
            return None
        event = self._unread.popleft()
        self._taken[event.choice] = _last_of(event.first, event.num_tokens)
        return event

    def credit_frame(self, now: float) -> Frame | None:
        """Mark all taken deltas as read; return a `credit` frame, if one is due."""
        self._read = self._taken.copy()
        if self.credit_in(now) != 0:
            return None
        self._credit_at = now
        self._allowed = [number + self._window for number in self._read]
        return {"t": "credit", "id": self.id, "upto": self._allowed.copy()}

    def credit_in(self, now: float) -> float | None:
        """Return the seconds until credit is due; None if more must be read first."""
        is_due = any(
            2 * (allowed - read) <= self._window
            for choice, (allowed, read) in enumerate(zip(self._allowed, self._read, strict=True))
            if choice not in self.ends
        )
        if not is_due or self.is_over or self._is_cancelled:
            return None
        return 0 if self._credit_at is None else max(0, self._credit_at + CREDIT_EVERY_S - now)

    def cancel_frame(self) -> Frame | None:
        """Return a `cancel` frame, unless the stream has ended or was cancelled already."""
        if self.is_over or self._is_cancelled:
            return None
        self._is_cancelled = True
        return {"t": "cancel", "id": self.id}

    @property
    def goes_on(self) -> bool:
        """Whether the stream goes on with another connection: the server keeps it, or has not accepted it yet."""
        return self.key is not None if self.stream_id is None else self._is_kept

    def start_frame(self, max_ttl_s: float) -> Frame:
        """Return the `start` frame; the server keeps streams for at most `max_ttl_s` seconds."""
        frame = {"t": "start", "id": self.id, "request": self.request}
        keeping = {"ttl_s": min(TTL_S, max_ttl_s), "idempotency_key": self.key}
        return frame | keeping if self.key is not None and max_ttl_s > 0 else frame

    def resume_frames(self, window: int, max_ttl_s: float) -> list[Frame]:
        """Return the frames that let the stream go on, on a server with these limits."""
        self.is_away, self._is_again = False, True
        frame = self.start_frame(max_ttl_s) if self.stream_id is None else self._resume_frame(window)
        return [frame, {"t": "cancel", "id": self.id}] if self._is_cancelled else [frame]

    def _resume_frame(self, window: int) -> Frame:
        self.state = ClientState.STREAMING if any(self._received) else ClientState.WAITING
        self.progress = None
        self._window = window
        credit = max(0, min(read + window - last for read, last in zip(self._read, self._received, strict=True)))
        self._allowed = [last + credit for last in self._received]
        less = {"credit": credit} if credit < window else {}
        return {"t": "resume", "id": self.id, "stream": self.stream_id, "after": self._received.copy(), **less}

    def disconnect(self) -> None:
        """End the stream, because the connection has ended."""
        self._end(ClientState.DISCONNECTED)

    def _add(self, frame: Frame) -> None:
        choice, first, count = frame["i"], frame["n"], frame["k"]
        if first <= self._received[choice]:
            return
        self._received[choice] = _last_of(first, count)
        if self.state is ClientState.WAITING:
            self.state = ClientState.STREAMING
        if self.progress is not None and self.progress["phase"] in ("queued", "prefill"):
            self.progress = None
        self._unread.append(
            ChatEvent(choice, first, count, frame["x"], frame.get("lp"), frame.get("r", ""), frame.get("tool"))
        )

    def _end(self, state: ClientState) -> None:
        self.state = state
        self.progress = None


def _last_of(first: int, num_tokens: int) -> int:
    """Return the number of the last token of a delta; text behind the last token has a number of its own."""
    return max(first, first + num_tokens - 1)


class ClientProtocol:
    """One connection and its open streams.

    Attributes:
        welcome: the server's first frame, once it was received.
        is_draining: whether the server is shutting down: it accepts no new streams, and closes after the open ones.
        streams: the open streams, by the client's id.
    """

    def __init__(self) -> None:
        self.welcome: Frame = {}
        self.is_draining = False
        self.streams: dict[str, ClientStream] = {}

    def hello(self, key: str | None) -> Frame:
        """Return the `hello` frame, the first one of a connection."""
        return {"t": "hello", "protocol": PROTOCOL} | ({"key": key} if key else {})

    @property
    def window(self) -> int:
        """The number of tokens that the server sends without credit."""
        return int(self.welcome.get("limits", {}).get("window", WINDOW))

    def start(self, stream: ClientStream) -> Frame:
        """Open a stream, after the welcome; return its `start` frame."""
        self.streams[stream.id] = stream
        return stream.start_frame(self._max_ttl_s)

    @property
    def _max_ttl_s(self) -> float:
        return float(self.welcome.get("limits", {}).get("ttl_s", 0))

    def receive(self, frame: Frame) -> list[Frame]:
        """Process one frame of the server; return the frames to send."""
        kind = frame["t"]
        if kind == "ping":
            return [{"t": "pong", "ts": frame["ts"]}]
        if kind == "welcome":
            self.welcome = frame
        elif kind == "draining":
            self.is_draining = True
        elif (stream := self.streams.get(frame.get("id", ""))) is not None:
            stream.receive(frame)
            if stream.is_over:
                del self.streams[stream.id]
        return []

    def suspend(self) -> None:
        """Prepare for another connection: streams that do not go on with it end."""
        self.welcome, self.is_draining = {}, False
        for stream in [*self.streams.values()]:
            stream.is_away, stream.num_refused = stream.goes_on, 0
            if not stream.goes_on:
                stream.disconnect()
                del self.streams[stream.id]

    def resume(self) -> list[Frame]:
        """Return the frames that let the streams go on that are away, after the welcome of another connection."""
        away = [stream for stream in self.streams.values() if stream.is_away]
        return [frame for stream in away for frame in stream.resume_frames(self.window, self._max_ttl_s)]

    def close(self) -> None:
        """End all open streams, because the connection has ended."""
        for stream in self.streams.values():
            stream.disconnect()
        self.streams.clear()
