"""Parses one HTTP answer as its bytes arrive, and notes when its chunks arrived. Sans I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import httptools
import orjson

from app.loadgen.answer import Answer
from app.streaming.sse_format import SseDecoder

DONE = "[DONE]"
TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")
MAX_ERROR_BYTES = 65536
MAX_MESSAGE = 500


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
            answer.fail(*read_refusal(answer.http_status, self._error_body), now)
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
        for event in self._events.feed(body):
            if self._answer.status != "open":
                return
            self._parse(event.data)

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
            self._fail(*read_refusal(self._answer.http_status, payload.encode()))
        else:
            self._record(fields)

    def _record(self, chunk: Mapping[str, Any]) -> None:
        answer = self._answer
        if isinstance(usage := chunk.get("usage"), dict):
            answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
            answer.output_tokens = usage.get("completion_tokens", answer.output_tokens)
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


class Refusal(NamedTuple):
    """A server's error: the name by which errors are counted (`503 overloaded`), and the message."""

    name: str
    message: str


def read_refusal(status: int, body: bytes) -> Refusal:
    """Return the error in a body, in any of the shapes that servers use; else the beginning of the body."""
    text = " ".join(body.decode("utf-8", "replace").split())[:MAX_MESSAGE]
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = {}
    error = fields.get("error", fields) if isinstance(fields, dict) else {}
    if not isinstance(error, dict):  # {"error": "a sentence"}
        return Refusal(str(status), str(error))
    code = error.get("code") or error.get("type") or ""
    name = str(status) if code in ("", status, str(status)) else f"{status} {code}"
    return Refusal(name, str(error.get("message") or error.get("detail") or text))


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Whether a choice contains output; chunks with only the role or the finish reason do not."""
    if (delta := choice.get("delta")) is None:
        return bool(choice.get("text"))
    return any(delta.get(name) for name in TEXTS)
