"""The types of the fields of a chat that its prompt depends on, and a body that has no other fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from app.api.tool_messages import ToolCall
from app.text.tool_choice import CHOICE_SCHEMA
from app.text.tools import TOOLS_SCHEMA

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


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
