"""The types of the fields of a chat that its prompt depends on, and a body that has no other fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from app.api.body.tool_messages import ToolCall
from app.text.answer.tool_use import CHOICE_SCHEMA
from app.text.calls.tools import TOOLS_SCHEMA

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class SameField(NamedTuple):
    """A field that another one says the same as: its name and value, and the path of the other one."""

    name: str
    value: object
    path: str


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """OpenRouter's `reasoning`, which routers send: the same as three fields of a chat."""

    effort: ReasoningEffort | None = None
    max_tokens: int | None = None
    exclude: bool | None = None
    enabled: bool | None = None

    def as_fields(self) -> Iterator[SameField]:
        """Yield the fields of a chat that say the same."""
        if self.enabled is False:
            yield SameField("reasoning_effort", "none", "reasoning.enabled")
        elif self.effort is not None:
            yield SameField("reasoning_effort", self.effort, "reasoning.effort")
        if self.max_tokens is not None:
            yield SameField("thinking_token_budget", self.max_tokens, "reasoning.max_tokens")
        if self.exclude:
            yield SameField("include_reasoning", False, "reasoning.exclude")


class TextPart(msgspec.Struct, tag_field="type", tag="text", kw_only=True):
    """A part of a message's content."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal", kw_only=True):
    """A part of an answer of a model that refuses; templates get its text."""

    refusal: str

    @property
    def text(self) -> str:
        """The text that the model said."""
        return self.refusal


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation.

    All that an answer's `message` may have is accepted, null and empty, too: clients send it back as it is.
    """

    role: str
    content: str | list[TextPart | RefusalPart] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def texts(self) -> list[str]:
        """The text, or those of the parts; of an answer without any text, why the model refused."""
        if isinstance(self.content, str):
            return [self.content or self.refusal or ""]
        return [part.text for part in self.content or ()] or [self.refusal or ""]


def _or_null(schema: Mapping[str, object]) -> msgspec.Meta:
    """Return the JSON schema of a field that `app.text` checks, or null."""
    return msgspec.Meta(extra_json_schema={"anyOf": [schema, {"type": "null"}]})


Tools = Annotated[Any, _or_null(TOOLS_SCHEMA)]
ToolChoice = Annotated[Any, _or_null(CHOICE_SCHEMA)]
