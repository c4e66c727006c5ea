"""The record of one request and its answer, and the parser that fills the record in. Sans I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import httptools
import orjson

from app.runtime.visible_text import visible
from app.streaming.sse_format import SseDecoder

DONE = "[DONE]"
TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")
MAX_ERROR_BYTES = 65536
MAX_MESSAGE = 500

Status = Literal["open", "completed", "cancelled", "failed"]


@dataclass(slots=True)
class Answer:
    """One request as its client saw it; times are seconds of `time.perf_counter`.

    Attributes:
        due: when the load schedules the request.
        ready: when it could be sent: `due`, or later if `--max-concurrency` delayed it.
        sent: when it was sent; its connection was opened then.
        connected: when the connection was open.
        times: when the chunks with text arrived.
        ended: when the last chunk arrived, with text or with the finish reason; or when the request failed.
        prompt_tokens, output_tokens: as counted by the server; None if it does not report them.
        cached_tokens: those of the prompt that the server found in its prefix cache; 0 if it does not report them.
        error: the name of a failure, by which failures are counted; `message` explains it.
    """

    due: float
    ready: float
    sent: float
    connected: float | None = None
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    status: Status = "open"
    error: str = ""
    message: str = ""
    http_status: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first chunk with text."""
        return self.times[0] - self.sent if self.times else None

    @property
    def e2e(self) -> float:
        """Seconds from sending to the last chunk."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None for answers of one token."""
        return (self.e2e - self.ttft) / (self.num_output - 1) if self.ttft is not None and self.num_output > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    @property
    def num_output(self) -> int:
        """Tokens of the answer as counted by the server, else the number of chunks."""
        return len(self.times) if self.output_tokens is None else self.output_tokens

    @property
    def late(self) -> float:
        """Seconds from when the request could be sent to when this client sent it."""
        return self.sent - self.ready

    def fail(self, error: str, message: str, now: float) -> None:
        """Record a failure, unless the answer has ended."""
        if self.status == "open":
            self.status, self.error, self.message, self.ended = "failed", error, message, now


class AnswerReader:
    """Parses the bytes of one answer, and records them in an `Answer`.

    Attributes:
        is_over: no more bytes are needed.
    """

    def __init__(self, answer: Answer, cancel_after: int | None = None) -> None:
        self.is_over = False
        self._answer = answer
        self._cancel_after = cancel_after
        self._http = httptools.HttpResponseParser(self)
        self._events = SseDecoder()
        self._error_body = b""
        self._has_finished = False
        self._now = 0.0

    def connected(self, now: float) -> None:
        """Note that the connection was open at `now`."""
        self._answer.connected = now

    def feed(self, piece: bytes, now: float) -> None:
        """Parse the next bytes, which arrived at `now`."""
        self._now = now
        try:
            self._http.feed_data(piece)
        except httptools.HttpParserError as error:  # or an exception of a callback below, for a malformed chunk
            self._fail("unreadable", f"the answer cannot be read: {error.__context__ or error}")

    def end(self, now: float) -> None:
        """Record how the answer ended, after the connection was closed or the answer was over."""
        answer, self.is_over = self._answer, True
        if answer.status != "open":
            return
        if answer.http_status not in (0, 200):
            answer.fail(*read_rejection(answer.http_status, self._error_body), now)
        elif self._has_finished:
            answer.status, answer.ended = "completed", answer.ended or now
        else:
            answer.fail("cut", f"the answer was cut after {len(answer.times)} chunks", now)

    def on_headers_complete(self) -> None:
        """Note the status; called by the parser."""
        self._answer.http_status = self._http.get_status_code()
        if self._answer.http_status == 200:
            self._cancel_if_due()

    def on_body(self, body: bytes) -> None:
        """Parse the events in the next bytes of the body; called by the parser."""
        if self._answer.http_status != 200:
            self._error_body = (self._error_body + body)[:MAX_ERROR_BYTES]
            return
        for data in self._events.feed(body):
            if self._answer.status != "open":
                return
            self._parse(data)

    def on_message_complete(self) -> None:
        """Note the end of the body; called by the parser."""
        self.is_over = True

    def _parse(self, payload: str) -> None:
        if payload == DONE:
            self._has_finished = True
            return
        try:
            fields = orjson.loads(payload)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            self._fail("unreadable", f"an event is not a JSON object: {payload[:200]}")
        elif fields.get("error"):
            self._fail(*read_rejection(self._answer.http_status, payload.encode()))
        else:
            self._record(fields)

    def _record(self, chunk: Mapping[str, Any]) -> None:
        answer = self._answer
        if isinstance(usage := chunk.get("usage"), dict):
            answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
            answer.output_tokens = usage.get("completion_tokens", answer.output_tokens)
            if isinstance(details := usage.get("prompt_tokens_details"), dict):
                cached = details.get("cached_tokens")
                answer.cached_tokens = cached if isinstance(cached, int) else 0
        choices = chunk.get("choices") or ()
        has_ended = any(choice.get("finish_reason") for choice in choices)
        has_text = any(map(_has_text, choices))
        self._has_finished |= has_ended
        if has_text or has_ended:
            answer.ended = self._now
        if has_text:
            answer.times.append(self._now)
            self._cancel_if_due()

    def _cancel_if_due(self) -> None:
        if self._cancel_after is not None and len(self._answer.times) >= self._cancel_after:
            self._answer.status, self._answer.ended, self.is_over = "cancelled", self._now, True

    def _fail(self, error: str, message: str) -> None:
        self._answer.fail(error, message, self._now)
        self.is_over = True


class Rejection(NamedTuple):
    """A server's error: the name by which errors are counted (`503 overloaded`), and the message."""

    name: str
    message: str


def read_rejection(status: int, body: bytes) -> Rejection:
    """Return the error in a body, in any of the shapes that servers use; else the beginning of the body."""
    text = " ".join(body.decode("utf-8", "replace").split())[:MAX_MESSAGE]
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = {}
    error = fields.get("error", fields) if isinstance(fields, dict) else {}
    if not isinstance(error, dict):  # {"error": "a sentence"}
        return Rejection(str(status), visible(str(error)))
    code = error.get("code") or error.get("type") or ""
    name = str(status) if code in ("", status, str(status)) else f"{status} {code}"
    return Rejection(visible(name), visible(str(error.get("message") or error.get("detail") or text)))


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice contains output; chunks with only the role or the finish reason do not."""
    if (delta := choice.get("delta")) is None:
        return bool(choice.get("text"))
    return any(delta.get(name) for name in TEXTS)
