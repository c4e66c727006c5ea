"""The shapes of the Messages API's answers: what is written, and what the OpenAPI document says."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.contract.events import Usage

StopReason = Literal["end_turn", "tool_use", "stop_sequence", "max_tokens", "model_context_window_exceeded"]


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    """A text."""

    text: str
    citations: None = None


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    """The model's reasoning; its signature is never checked here, and never empty, as other servers would refuse it."""

    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call; `input` is empty if its arguments are not the JSON of an object, as those of a call that was cut."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(msgspec.Struct):
    """The generated tokens that are reasoning."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    """Token counts: `input_tokens` are those of the prompt that were not found in the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | UnsetType = UNSET

    @classmethod
    def of(cls, usage: Usage, reasoning_tokens: int | None) -> MessageUsage:
        """Return the counts of an answer, with those of its reasoning if they are counted."""
        return cls(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            output_tokens_details=UNSET if reasoning_tokens is None else ThinkingTokens(reasoning_tokens),
        )


class MessageAnswer(msgspec.Struct, kw_only=True):
    """A message of the assistant."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageEnd(msgspec.Struct):
    """The end of a message in a stream."""

    stop_reason: StopReason
    stop_sequence: str | None
