"""The choices of a chat, in chunks and in a JSON body."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET

from app.api.wire.answers import (
    AnswerMessage,
    CallAnswer,
    CallDelta,
    ChatAnswer,
    ChatChoice,
    ChunkChoice,
    FunctionAnswer,
    FunctionDelta,
    MessageDelta,
    end_fields,
)
from app.api.wire.api_request import ApiRequest
from app.api.wire.json_line import dump_line
from app.contract.events import ChoiceEnd, TokenDelta
from app.contract.packed_logprobs import Logprobs
from app.streaming.openai_shapes import logprobs_entries
from app.text.answer.parsed import CallPiece, Parsed, call_id

Part = str | MessageDelta
"""A part of a message: text, or text beside reasoning and calls."""


class ChatFormat:
    """Implements `ChoiceFormat` for chats: what is shown of the prompt is beside the choices."""

    chunk_object: Final = "chat.completion.chunk"
    has_prompt_in_choice = False

    def __init__(self, request: ApiRequest) -> None:
        self._request = request
        self._parsers = request.new_parsers()
        self._reasoning_fields = request.reasoning_fields
        self._texts: defaultdict[int, list[str]] = defaultdict(list)  # of choices that nothing parses

    def first(self, choice: int) -> ChunkChoice:
        """Return the role. An answer that may be calls alone has no content yet."""
        has_tools = self._request.answer is not None and self._request.answer.schemas is not None
        return ChunkChoice(index=choice, delta=MessageDelta(role="assistant", content=None if has_tools else ""))

    def choice(self, choice: int, part: Part) -> ChunkChoice:
        return ChunkChoice(index=choice, delta=part if isinstance(part, MessageDelta) else MessageDelta(content=part))

    def part(self, delta: TokenDelta) -> Part:
        return delta.text if self._parsers is None else self._part(delta.choice, self._parsers.feed(delta))

    def skip(self, delta: TokenDelta) -> None:
        """Take new tokens whose part nobody needs."""
        if self._parsers is not None:
            self._parsers.feed(delta)

    def rest(self, choice: int) -> Part:
        return "" if self._parsers is None else self._part(choice, self._parsers.finish(choice))

    def end(self, choice: int, end: ChoiceEnd) -> ChunkChoice:
        return ChunkChoice(index=choice, delta=MessageDelta(), **self._end_fields(choice, end))

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        return {"content": logprobs_entries(logprobs, self._request.token_bytes), "refusal": None}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        yield b'{"content":['
        for number, piece in enumerate(logprobs.pieces()):
            yield (b"," if number else b"") + dump_line(logprobs_entries(piece, self._request.token_bytes))[1:-1]
        yield b'],"refusal":null}'

    def keep(self, delta: TokenDelta) -> None:
        if self._parsers is not None:
            self._parsers.keep(delta)
        else:
            self._texts[delta.choice].append(delta.text)

    def whole(self, choice: int, end: ChoiceEnd, **fields: Any) -> ChatChoice:
        if self._parsers is not None:
            message = self._message(choice, self._parsers.whole(choice))
        else:
            message = AnswerMessage("assistant", "".join(self._texts[choice]), None)
        return ChatChoice(index=choice, message=message, **fields, **self._end_fields(choice, end))

    def body(self, choices: list[Any], **fields: Any) -> ChatAnswer:
        return ChatAnswer(object="chat.completion", choices=choices, **fields)

    @property
    def reasoning_tokens(self) -> int | None:
        return None if self._parsers is None else self._parsers.reasoning_tokens

    def _end_fields(self, choice: int, end: ChoiceEnd) -> dict[str, Any]:
        return end_fields(end if self._parsers is None else self._parsers.end_of(choice, end))

    def _part(self, choice: int, parsed: Parsed) -> Part:
        text, reasoning, calls = parsed.text, parsed.reasoning, parsed.calls
        if not reasoning and not calls:
            return text
        delta = MessageDelta(**self._reasoning(reasoning))
        if text:
            delta.content = text
        if calls:
            delta.tool_calls = [self._call_delta(choice, piece) for piece in calls]
        return delta

    def _message(self, choice: int, whole: Parsed) -> AnswerMessage:
        message = AnswerMessage("assistant", whole.text, None, **self._reasoning(whole.reasoning))
        if calls := whole.calls:
            message.content = whole.text or None
            message.tool_calls = [
                CallAnswer(self._call_id(choice, call), "function", FunctionAnswer(call.name, call.arguments))
                for call in calls
            ]
        return message

    def _reasoning(self, reasoning: str) -> dict[str, Any]:
        return dict.fromkeys(self._reasoning_fields, reasoning) if reasoning else {}

    def _call_delta(self, choice: int, piece: CallPiece) -> CallDelta:
        if not piece.is_first:
            return CallDelta(index=piece.call, function=FunctionDelta(UNSET, piece.arguments))
        function = FunctionDelta(piece.name, piece.arguments)
        return CallDelta(index=piece.call, id=self._call_id(choice, piece), type="function", function=function)

    def _call_id(self, choice: int, piece: CallPiece) -> str:
        return call_id(self._request.id, choice, piece.call)
