"""The fields of the body of a request for a response, which are OpenAI's and, for sampling, those of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from app.api.body.any_body import AnyBody
from app.api.body.chat_fields import ReasoningEffort
from app.api.body.field_table import Rule, accepted, refused, refused_but
from app.api.body.response_format import JsonSchema
from app.api.responses.item_kinds import MAX_ITEMS, InputItem
from app.api.responses.response_tools import CHOICE_SCHEMA, TOOLS_SCHEMA

MAX_PAIRS = 16
MAX_KEY_CHARS = 64
MAX_ECHO_CHARS = 512
MAX_DESCRIPTION_CHARS = 16 * 2**10  # of the format of a text
MAX_TOP_LOGPROBS = 20
LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
Summary = Literal["auto", "concise", "detailed"]
Echo = Annotated[str, msgspec.Meta(max_length=MAX_ECHO_CHARS)]
"""A text that the response repeats."""
Pairs = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)], Echo],
    msgspec.Meta(max_length=MAX_PAIRS),
]


class ResponseReasoning(msgspec.Struct, kw_only=True):
    """`reasoning`; with a `summary` the answer's reasoning goes out as one."""

    effort: ReasoningEffort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: str | None = None
    mode: str | None = None


class _AnyFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """The formats. An unknown field would say what the answer must be, so none is ignored."""


class AnyText(_AnyFormat, tag="text"):
    """Any text."""


class AnyObject(_AnyFormat, tag="json_object"):
    """A JSON object."""


class SchemaText(_AnyFormat, tag="json_schema"):
    """JSON that satisfies a schema, which always binds."""

    schema: JsonSchema
    name: Echo | None = None
    description: Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    strict: bool | None = None


class ResponseText(msgspec.Struct, kw_only=True):
    """`text`."""

    format: AnyText | AnyObject | SchemaText | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`."""

    include_obfuscation: bool | None = None  # streams here have none
    slow_reader: Literal["pause", "coalesce", "drop"] | None = None


_SEND_FORMAT = "send text.format"


class ResponsesBody(AnyBody, kw_only=True):
    """The body of `POST /v1/responses`, and of the count of its prompt's tokens."""

    options: ClassVar[tuple[str, ...]] = ("reasoning", "text", "stream_options")
    own_rules: ClassVar[Mapping[str, Rule]] = {
        **refused("conversation", "prompt", note="send the items as input"),
        **refused("context_management", "moderation", "personality"),
        **accepted(
            "it says nothing to this server",
            "access_programs", "background_options", "image", "client_metadata",
        ),
        **accepted("it is read on the WebSocket alone", "type", "stream_id", "generate"),
        **refused("messages", note="send input"),
        **refused("logprobs", "prompt_logprobs", note="send top_logprobs, and include message.output_text.logprobs"),
        **refused("max_tokens", "max_completion_tokens", note="send max_output_tokens"),
        **refused("reasoning_effort", note="send reasoning.effort"),
        **refused(
            "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
            "json_schema", "regex", "ebnf", "grammar", note=_SEND_FORMAT,
        ),
        **refused("use_beam_search", "beam_width", "length_penalty", "early_stopping", "return_token_ids"),
        **refused("continue_final_message", "include_reasoning", note="send the chat to /v1/chat/completions"),
        **dict.fromkeys(("n", "best_of"), refused_but(1)),
    }  # fmt: skip

    input: Annotated[list[InputItem], msgspec.Meta(max_length=MAX_ITEMS)] | str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[Any, msgspec.Meta(extra_json_schema=TOOLS_SCHEMA)] = None
    tool_choice: Annotated[Any, msgspec.Meta(extra_json_schema=CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool | None = None
    reasoning: ResponseReasoning | None = None
    text: ResponseText | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[Include] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_tool_calls: int | None = None
    metadata: Pairs | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    user: Echo | None = None
    safety_identifier: Echo | None = None
    prompt_cache_key: Echo | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    repetition_stop: bool | None = None
    thinking_token_budget: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
    timings: bool | None = None


AS_ON_CHAT = (
    "chat_template_kwargs", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens",
    "repetition_stop", "thinking_token_budget", "priority", "cache_salt", "queue_timeout", "timeout", "timings",
    "stream",
)  # fmt: skip
"""The fields that mean what they mean in a chat."""
NAMES_ON_CHAT: Mapping[str, str] = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
}
"""The fields of a body by those of the chat that it becomes, for errors."""
