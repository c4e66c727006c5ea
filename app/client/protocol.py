"""The client's side of quire.v1, sans I/O: frames of the server go in, frames to send come out.

Rules of this file; the frames stand in `app/streaming/chat_table.py`
- Credit follows the reader, not the socket: it is raised once so much has been read that at most half of the window is
  left, at most ten times a second for each stream, and never for a stream that nobody reads or wants any more.
- So at most a window of unread tokens of each choice waits here.
- Deltas that came before (`n` is not above the last number) and frames of ids that are unknown or have ended count for
  nothing.

The chat page's `stream.js` and `protocol.js` do the same; `tests/vectors/quire_v1.json` holds both to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

PROTOCOL = "quire.v1"
WINDOW = 256  # what the protocol allows without any credit, where a server does not tell
CREDIT_EVERY_S = 0.1

Frame = dict[str, Any]


class ClientState(StrEnum):
    """Where a stream stands, by what has been received."""

    WAITING = "waiting"
    STREAMING = "streaming"
    PAUSED = "paused"  # generation waits for the reader
    DONE = "done"
    ERROR = "error"
    CUT = "cut"  # the connection ended first


class ChatEvent(NamedTuple):
    """Tokens of one choice: the number of the first, how many, the text they released, OpenAI logprobs entries."""

    choice: int
    first: int
    num_tokens: int
    text: str
    logprobs: list[dict[str, Any]] | None


class ClientStream:
    """One answer: what has come of it, and how far it has been read.

    Attributes:
        id: the client's id.
        state: where it stands.
        stream_id, model: the server's id and the model's name, once the request is accepted.
        progress: the last `progress` frame, while the answer waits for what it tells of.
        finish_reasons: why each choice ended, as far as they have.
        usage, timings: the server's figures, once the stream is done.
        failure: the `error` frame that ended it.
    """

    def __init__(self, client_id: str, num_choices: int, window: int) -> None:
        self.id = client_id
        self.state = ClientState.WAITING
        self.stream_id: str | None = None
        self.model: str | None = None
        self.progress: Frame | None = None
        self.finish_reasons: dict[int, str] = {}
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, float] | None = None
        self.failure: Frame | None = None
        self._window = window
        self._unread: deque[ChatEvent] = deque()
        self._received = [0] * num_choices  # the last number of each choice
        self._taken = [0] * num_choices
        self._read = [0] * num_choices
        self._allowed = [window] * num_choices
        self._credit_at: float | None = None
        self._is_cancelled = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in (ClientState.DONE, ClientState.ERROR, ClientState.CUT)

    def receive(self, frame: Frame) -> None:
        """Take a frame of this stream."""
        kind = frame["t"]
        if kind == "delta":
            self._add(frame)
        elif kind == "accepted":
            self.stream_id, self.model = frame["stream"], frame["model"]
        elif kind == "progress":
            self.progress = None if frame["phase"] == "decode" else frame
        elif kind == "paused":
            self.state = ClientState.PAUSED
        elif kind == "resumed":
            self.state = ClientState.STREAMING if any(self._received) else ClientState.WAITING
        elif kind == "finish":
            self.finish_reasons[frame["i"]] = frame["finish_reason"]
        elif kind == "done":
            self.usage, self.timings = frame["usage"], frame["timings"]
            self._end(ClientState.DONE)
        elif kind == "error":
            self.failure = frame
            self._end(ClientState.ERROR)

    def take(self) -> ChatEvent | None:
        """Return the next piece that has not been taken, or None; it counts as read with the next `credit`."""
        if not self._unread:
            return None
        event = self._unread.popleft()
        self._taken[event.choice] = event.first + event.num_tokens - 1
        return event

    def credit(self, now: float) -> Frame | None:
        """The reader has read what was taken: return the frame that allows more, if it is time for one."""
        self._read = self._taken.copy()
        if self.credit_in(now) != 0:
            return None
        self._credit_at = now
        self._allowed = [number + self._window for number in self._read]
        return {"t": "credit", "id": self.id, "upto": self._allowed.copy()}

    def credit_in(self, now: float) -> float | None:
        """Return in how many seconds credit is due; None: not before more has been read."""
        is_due = any(
            2 * (allowed - read) <= self._window
            for choice, (allowed, read) in enumerate(zip(self._allowed, self._read, strict=True))
            if choice not in self.finish_reasons
        )
        if not is_due or self.is_over or self._is_cancelled:
            return None
        return 0 if self._credit_at is None else max(0, self._credit_at + CREDIT_EVERY_S - now)

    def cancel(self) -> Frame | None:
        """Return the frame that ends the answer, unless it has ended or is about to."""
        if self.is_over or self._is_cancelled:
            return None
        self._is_cancelled = True
        return {"t": "cancel", "id": self.id}

    def cut(self) -> None:
        """The connection has ended before the stream."""
        self._end(ClientState.CUT)

    def _add(self, frame: Frame) -> None:
        choice, first, count = frame["i"], frame["n"], frame["k"]
        if first <= self._received[choice]:
            return
        self._received[choice] = first + count - 1
        if self.state is ClientState.WAITING:
            self.state = ClientState.STREAMING
        if self.progress is not None and self.progress["phase"] in ("queued", "prefill"):
            self.progress = None
        self._unread.append(ChatEvent(choice, first, count, frame["x"], frame.get("lp")))

    def _end(self, state: ClientState) -> None:
        self.state = state
        self.progress = None


class ClientProtocol:
    """One connection and its open streams.

    Attributes:
        welcome: the server's first frame, once it has come.
        is_draining: whether the server stops: it takes no new streams and closes once the open ones have ended.
        streams: those that have not ended, by the client's id.
    """

    def __init__(self) -> None:
        self.welcome: Frame = {}
        self.is_draining = False
        self.streams: dict[str, ClientStream] = {}

    def hello(self, key: str | None) -> Frame:
        """Return the first frame."""
        return {"t": "hello", "protocol": PROTOCOL} | ({"key": key} if key else {})

    def start(self, client_id: str, request: Mapping[str, Any]) -> Frame:
        """Open a stream, after the welcome; return the frame that asks for it."""
        count = request.get("n")
        num_choices = count if isinstance(count, int) and count >= 1 else 1  # others the server refuses
        window = self.welcome.get("limits", {}).get("window", WINDOW)
        self.streams[client_id] = ClientStream(client_id, num_choices, window)
        return {"t": "start", "id": client_id, "request": request}

    def receive(self, frame: Frame) -> list[Frame]:
        """Take one frame of the server; return what is to be answered."""
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

    def close(self) -> None:
        """The connection has ended, and with it every open stream."""
        for stream in self.streams.values():
            stream.cut()
        self.streams.clear()
