"""The types of the fields of a chat that its prompt depends on, and a body that has no other fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from app.api.tool_messages import ToolCall
from app.text.tool_choice import CHOICE_SCHEMA
from app.text.tools import TOOLS_SCHEMA

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """OpenRouter's `reasoning`, which routers send: the same as three fields of a chat."""

    effort: ReasoningEffort | None = None
    max_tokens: int | None = None
    exclude: bool | None = None
    enabled: bool | None = None

    def as_fields(self) -> Iterator[tuple[str, object]]:
        """Yield the fields of a chat that say the same, with their values."""
        effort = "none" if self.enabled is False else self.effort
        given = {
            "reasoning_effort": effort,
            "thinking_token_budget": self.max_tokens,
            "include_reasoning": False if self.exclude else None,
        }
        return ((name, value) for name, value in given.items() if value is not None)


class TextPart(msgspec.Struct, kw_only=True):
    """One part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


def _or_null(schema: Mapping[str, object]) -> msgspec.Meta:
    """Return the JSON schema of a field that `app.text` checks, or null."""
    return msgspec.Meta(extra_json_schema={"anyOf": [schema, {"type": "null"}]})


Tools = Annotated[Any, _or_null(TOOLS_SCHEMA)]
ToolChoice = Annotated[Any, _or_null(CHOICE_SCHEMA)]
