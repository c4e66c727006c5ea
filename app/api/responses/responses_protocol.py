"""The WebSocket of responses, sans I/O: what a client's frames ask for, and the frames that are no events.

Rules of this file:
- One response at a time. Those that are asked for meanwhile wait in their order, at most MAX_WAITING of at most
  MAX_WAITING_BYTES together.
- A frame that asks for a response is read no further than its own fields: it is checked like a body that came over
  HTTP.
- What is wrong with a frame is told by an `error` frame, and the socket stays; many in a row close it.
"""

from __future__ import annotations

import string
from collections import deque
from typing import Any, NamedTuple

import msgspec
import orjson

from app.contract.errors import ErrorInfo, InvalidValue, JsonInvalid, RateLimitExceeded, RequestError
from app.runtime.clock import Clock, monotonic
from app.runtime.token_bucket import TokenBucket
from app.streaming.chat_actions import ChatLimits, Close, Send
from app.streaming.chat_frames import MAX_FIELD_BYTES
from app.streaming.chat_table import CLOSE_BAD_FRAMES, CLOSE_BINARY, CLOSE_RATE

MAX_WAITING = 8
MAX_WAITING_BYTES = 2**20
MAX_STREAM_ID_CHARS = 256
_STREAM_ID_CHARS = frozenset(string.ascii_letters + string.digits + "_.-")
CREATE, STEER, PROCESSED = "response.create", "response.steer", "response.processed"


class Create(NamedTuple):
    """Begin a response: check and submit `body`, a JSON object; call `end_response` when it has ended.

    Without `has_output` its prompt is computed, and nothing else. Frames of the response have its `stream_id`, if it
    has one.
    """

    body: bytes
    stream_id: str | None = None
    has_output: bool = True


Action = Create | Send | Close


class _Fields(msgspec.Struct):
    """The fields that are read here, as JSON; the others make no objects."""

    type: msgspec.Raw = msgspec.Raw()
    stream_id: msgspec.Raw = msgspec.Raw()
    generate: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Fields)


class ResponsesProtocol:
    """The server's side of one connection. `receive` raises no exception, whatever a client sends.

    Attributes:
        is_busy: whether a response is being answered.
    """

    def __init__(self, limits: ChatLimits, clock: Clock = monotonic) -> None:
        self.is_busy = False
        self._max_bad_frames = limits.max_bad_frames
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_burst, clock)
        self._waiting: deque[Create] = deque()
        self._num_bad_frames = 0

    def receive(self, text: str) -> list[Action]:
        """Process one text frame and return the actions to take, in order."""
        if not self._messages.take():
            return [Close(CLOSE_RATE, "too many messages per second")]
        stream_id = None
        try:
            fields = _read(text)
            stream_id = _stream_id(fields)
            actions = self._handle(text, fields, stream_id)
        except RequestError as error:
            return self._count_bad_frame(error, stream_id)
        self._num_bad_frames = 0
        return actions

    def receive_binary(self) -> list[Action]:
        """Reject a binary frame."""
        return [Close(CLOSE_BINARY, "this protocol has text frames only")]

    def end_response(self) -> list[Action]:
        """Note that the response has ended; return the beginning of the one that has waited longest."""
        self.is_busy = bool(self._waiting)
        return [self._waiting.popleft()] if self._waiting else []

    def _handle(self, text: str, fields: _Fields, stream_id: str | None) -> list[Action]:
        kind = _value(fields.type)
        if kind == CREATE:
            return self._create(text, fields, stream_id)
        if kind == STEER:
            return [Send(_steer_failed(fields, stream_id))]
        if kind == PROCESSED:
            return []
        shown = f"is {kind[:64]!r}" if isinstance(kind, str) else "is missing or no text"
        raise InvalidValue(f"type {shown}; it must be {CREATE}.", param="type")

    def _create(self, text: str, fields: _Fields, stream_id: str | None) -> list[Action]:
        generate = _value(fields.generate)
        if not (generate is None or isinstance(generate, bool)):
            raise InvalidValue("generate must be true or false.", param="generate")
        create = Create(text.encode(), stream_id, generate is not False)
        if not self.is_busy:
            self.is_busy = True
            return [create]
        if len(self._waiting) >= MAX_WAITING:
            raise RateLimitExceeded(
                f"One response is answered and {MAX_WAITING} wait, no more are allowed; wait for the end of one."
            )
        if len(create.body) + sum(len(each.body) for each in self._waiting) > MAX_WAITING_BYTES:
            raise RateLimitExceeded(
                f"One response is answered, and the frames that wait may have {MAX_WAITING_BYTES} bytes together; send "
                "this one when it has ended."
            )
        self._waiting.append(create)
        return []

    def _count_bad_frame(self, error: RequestError, stream_id: str | None) -> list[Action]:
        self._num_bad_frames += 1
        reply = Send(error_frame(error.info(), stream_id))
        if self._num_bad_frames < self._max_bad_frames:
            return [reply]
        return [reply, Close(CLOSE_BAD_FRAMES, "too many bad frames in a row")]


def error_frame(error: ErrorInfo, stream_id: str | None = None) -> str:
    """Return the frame of an error that is no event of a response."""
    fields: dict[str, Any] = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    if error.retry_after_s is not None:
        fields["headers"] = {"retry-after": str(error.retry_after_s)}
    return _frame({"type": "error", "status": error.http_status, "error": fields}, stream_id)


def _steer_failed(fields: _Fields, stream_id: str | None) -> str:
    """Return the answer to a frame that would change a response while it is answered."""
    message = "This server does not steer responses; wait for the end, and send another one."
    error = {"code": "steering_not_supported", "message": message, "type": "invalid_request_error"}
    steer = {"input": _value(fields.input) or "", "previous_response_id": _value(fields.previous_response_id) or ""}
    return _frame({"type": f"{STEER}.failed", "sequence_number": 0, "error": error, "steer": steer}, stream_id)


def _frame(fields: dict[str, Any], stream_id: str | None) -> str:
    return orjson.dumps(fields if stream_id is None else {**fields, "stream_id": stream_id}).decode()


def _read(text: str) -> _Fields:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise JsonInvalid("A frame must be one JSON object.") from None


def _value(raw: msgspec.Raw) -> Any:
    """Return the value of a field, None if it is missing or longer than a field can be.

    Raises:
        JsonInvalid: it is no JSON, or nested too deeply.
    """
    json = bytes(raw)
    if not 0 < len(json) <= MAX_FIELD_BYTES:
        return None
    try:
        return orjson.loads(json)
    except orjson.JSONDecodeError as error:
        raise JsonInvalid(f"A field of the frame is not valid JSON: {error}.") from None


def _stream_id(fields: _Fields) -> str | None:
    """Return the id that the client gives a response.

    Raises:
        InvalidValue: it is no id.
    """
    found = _value(fields.stream_id)
    if found is None and len(bytes(fields.stream_id)) <= MAX_FIELD_BYTES:
        return None
    if not (isinstance(found, str) and 1 <= len(found) <= MAX_STREAM_ID_CHARS and _STREAM_ID_CHARS.issuperset(found)):
        raise InvalidValue(
            f"stream_id must be a text of 1 to {MAX_STREAM_ID_CHARS} letters, digits, `_`, `.` and `-`.",
            param="stream_id",
        )
    return found
