"""The events and bodies of the Messages API: the wire of its answers.

Nearly all events are a piece of a text. The JSON around such pieces is made once for each block, so that a token costs
one dump of its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from app.api.anthropic.message_answers import MessageAnswer, MessageEnd, MessageUsage, StopReason
from app.api.anthropic.message_assembler import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Change,
    MessageAssembler,
    MessageContent,
)
from app.api.anthropic.message_errors import MessageErrorFields
from app.api.anthropic.parse_message import AskedMessage
from app.api.wire.api_request import ApiRequest
from app.api.wire.framing import SSE
from app.api.wire.json_line import one_line, text_line
from app.api.wire.wire import JsonBody
from app.contract.errors import ErrorInfo
from app.contract.events import REPETITION, ChoiceEnd, Finished, FinishReason, PromptScored, Timings, TokenDelta, Usage
from app.text.reading.answer_events import Text

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
    "signature_delta": "signature",
}
_AFTER_TEXT = b"}}\n\n"


class MessagesWire:
    """Implements `Wire` for one answer of the Messages API."""

    media_type = SSE.media_type
    heartbeat = PING

    def __init__(self, request: ApiRequest) -> None:
        assert isinstance(request.asked, AskedMessage)
        self._request = request
        self._is_lowered = request.asked.is_lowered
        self._parsed = request.new_parsers()
        self._assembler = MessageAssembler(request.id)
        self._content = MessageContent()
        self._end = MessageEnd("end_turn", None)
        self._heads: dict[str, bytes] = {}  # of the open block's deltas, by their type
        self._plain_head = b""  # of all further deltas of an answer that nothing parses

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield the start of the message, which has the tokens of the prompt, and a ping."""
        num_tokens = len(self._request.request.prompt_token_ids)
        usage = MessageUsage(input_tokens=num_tokens, cache_read_input_tokens=0, output_tokens=0)
        message = MessageAnswer(id=self._request.id, model=self._request.model, content=[], usage=usage)
        yield _event("message_start", message=message) + PING

    def delta(self, delta: TokenDelta) -> bytes:
        if self._plain_head:
            return self._plain_head + text_line(delta.text) + _AFTER_TEXT if delta.text else b""
        events = self._written(self._changes(delta))
        if self._parsed is None:
            self._plain_head = self._heads.get("text_delta", b"")
        return events

    def skip(self, delta: TokenDelta) -> None:
        self.delta(delta)

    def finish(self, finished: Finished) -> bytes:
        """Return the events of what was held back, and the end of the last block."""
        return self._written(self._ended(finished.choice, finished.end))

    def last(self, usage: Usage, span: Timings) -> bytes:
        """Return the end of the message, with the token counts."""
        return _event("message_delta", delta=self._end, usage=self._usage(usage)) + _event("message_stop")

    def error(self, error: ErrorInfo) -> bytes:
        return _event("error", error=MessageErrorFields.of(error))

    def keep(self, event: TokenDelta | PromptScored) -> None:
        if isinstance(event, TokenDelta):
            self._content.add(self._changes(event))

    def whole(self, ends: Mapping[int, ChoiceEnd], usage: Usage, span: Timings) -> JsonBody:
        self._content.add(self._ended(0, ends[0]))
        answer = MessageAnswer(
            id=self._request.id,
            model=self._request.model,
            content=self._content.blocks,
            stop_reason=self._end.stop_reason,
            stop_sequence=self._end.stop_sequence,
            usage=self._usage(usage),
        )
        return JsonBody(iter([msgspec.json.encode(answer)]), None)

    def _changes(self, delta: TokenDelta) -> list[Change]:
        return self._assembler.take([Text(delta.text)] if self._parsed is None else self._parsed.feed(delta).events)

    def _ended(self, choice: int, end: ChoiceEnd) -> list[Change]:
        """Return the last changes, and note why the answer has ended."""
        rest: list[Change] = []
        if self._parsed is not None:
            rest = self._assembler.take(self._parsed.finish(choice).events)
            end = self._parsed.end_of(choice, end)
        self._end = self._message_end(end)
        return rest + self._assembler.close()

    def _message_end(self, end: ChoiceEnd) -> MessageEnd:
        reasons: dict[FinishReason, StopReason] = {FinishReason.TOOL_CALLS: "tool_use", FinishReason.STOP: "end_turn"}
        if end.reason is FinishReason.STOP and isinstance(end.stop_reason, str):
            return MessageEnd("stop_sequence", end.stop_reason)
        # One that repeats itself ends before any limit; clients know no other word for an end that is not the model's.
        is_at_lowered = self._is_lowered and end.stop_reason != REPETITION
        limit: StopReason = "model_context_window_exceeded" if is_at_lowered else "max_tokens"
        return MessageEnd(reasons.get(end.reason, limit), None)

    def _usage(self, usage: Usage) -> MessageUsage:
        return MessageUsage.of(usage, None if self._parsed is None else self._parsed.reasoning_tokens)

    def _written(self, changes: Iterable[Change]) -> bytes:
        return b"".join([self._event_of(change) for change in changes])

    def _event_of(self, change: Change) -> bytes:
        match change:
            case BlockDelta():
                head = self._heads.get(change.kind) or self._head(change)
                return head + text_line(change.text) + _AFTER_TEXT
            case BlockStart():
                self._heads = {}
                return _event("content_block_start", index=change.number, content_block=change.block)
            case BlockStop():
                return _event("content_block_stop", index=change.number)

    def _head(self, delta: BlockDelta) -> bytes:
        fields = {"type": delta.kind, _FIELDS[delta.kind]: ""}
        event = _event("content_block_delta", index=delta.number, delta=fields)
        self._heads[delta.kind] = head = event.removesuffix(b'""' + _AFTER_TEXT)
        return head


def _event(name: str, **fields: object) -> bytes:
    """Return a server-sent event, whose name is in its JSON, too."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), one_line(msgspec.json.encode({"type": name, **fields})))
