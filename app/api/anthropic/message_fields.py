"""The bodies of Anthropic's Messages API as structs: they check the fields, and describe them.

Blocks and objects may have further fields, such as `cache_control`, which change nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from app.api.body.any_body import AnyBody
from app.api.body.field_table import accepted, ignored, refused
from app.contract.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS

Role = Literal["user", "assistant", "system"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]
Count = Annotated[int, msgspec.Meta(ge=0)]
StopSequence = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_STOP_LENGTH})]
StopSequences = Annotated[list[StopSequence], msgspec.Meta(extra_json_schema={"maxItems": MAX_STOP_STRINGS})]


class _Block(msgspec.Struct, kw_only=True, tag_field="type"):
    """A block of a message's content."""


class TextBlock(_Block, tag="text"):
    """A text."""

    text: str


class ThinkingBlock(_Block, tag="thinking"):
    """Reasoning of an earlier answer; its signature is not checked."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block, tag="redacted_thinking"):
    """Reasoning that only Anthropic can read: nothing here."""


class ToolUseBlock(_Block, tag="tool_use"):
    """A call; `input` is its arguments, or the text of those that are no object."""

    id: str
    name: str
    input: dict[str, Any] | str | None = None


class ImageBlock(_Block, tag="image"):
    """An image, which no model here reads."""


class DocumentBlock(_Block, tag="document"):
    """A document: only those that are text are read."""

    source: dict[str, Any]


class SearchResultBlock(_Block, tag="search_result"):
    """A search result of the client: its texts are read."""

    content: list[TextBlock]


class ToolReferenceBlock(_Block, tag="tool_reference"):
    """The name of a tool, in the result of a search for tools: its definition is read."""

    tool_name: str


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(_Block, tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


ContentBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class InputMessage(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Role
    content: str | list[ContentBlock]


class ToolDefinition(msgspec.Struct, kw_only=True):
    """A tool: a function of the client's, or one of those that Anthropic runs, which have a `type` of their own."""

    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _Choice(msgspec.Struct, kw_only=True, tag_field="type"):
    """The client's choice among the tools."""

    disable_parallel_tool_use: bool | None = None


class AutoChoice(_Choice, tag="auto"):
    """The model decides."""


class AnyChoice(_Choice, tag="any"):
    """The answer is one or several calls."""


class NamedChoice(_Choice, tag="tool"):
    """The answer is a call of one tool."""

    name: str


class NoChoice(_Choice, tag="none"):
    """The answer has no calls."""


class _Thinking(msgspec.Struct, kw_only=True, tag_field="type"):
    """Whether the model reasons. `display` changes nothing: reasoning is sent, as the next request must have it."""


class EnabledThinking(_Thinking, tag="enabled"):
    """The model reasons, with at most so many tokens."""

    budget_tokens: Count | None = None


class AdaptiveThinking(_Thinking, tag="adaptive"):
    """As the model's template does by default."""


class ThinkingBetweenTools(_Thinking, tag="between_tools"):
    """As the model's template does by default."""


class DisabledThinking(_Thinking, tag="disabled"):
    """The model does not reason, if its template can ask for that."""


class JsonSchemaOutput(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """The answer is JSON that satisfies a schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    """`output_config`."""

    effort: Effort | None = None
    format: JsonSchemaOutput | None = None


class CountTokensBody(AnyBody, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`: the fields that the prompt is made of, and what is said of it."""

    own_rules: ClassVar[Mapping[str, Any]] = {
        **accepted(
            "nothing is stored, billed or chosen by it here",
            "metadata", "service_tier", "speed", "inference_geo", "diagnostics", "user_profile_id", "workspace_id",
        ),
        **accepted("the prefix cache needs no advice", "cache_control"),
        **ignored("the context is never edited here", "context_management"),
        **refused("container", "mcp_servers"),
    }  # fmt: skip
    options: ClassVar[tuple[str, ...]] = ("output_config",)

    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: EnabledThinking | AdaptiveThinking | ThinkingBetweenTools | DisabledThinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonSchemaOutput | None = None


class MessagesBody(CountTokensBody, kw_only=True):
    """The body of `POST /v1/messages`. The last five fields are Quire's own, as in chats."""

    max_tokens: Annotated[int, msgspec.Meta(ge=0)]
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: StopSequences | None = None
    repetition_stop: bool | None = None
    seed: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
