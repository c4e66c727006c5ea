"""The structs of request bodies, whose fields act, and the checks of bodies.

A field that acts is rejected with its path if its value is invalid. The table of fields decides for all others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from app.api.body.any_body import AnyBody
from app.api.body.chat_fields import Message, ReasoningEffort, ReasoningOptions, ToolChoice, Tools
from app.api.body.field_table import OFF, Fate, is_one_of, rule_of
from app.api.body.invalid_field import invalid_field
from app.api.body.response_format import UNSUPPORTED_OUTPUTS, StructuredOutputFields, VllmOutputs
from app.config.nearest import nearest
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.sampling_params import SamplingParams
from app.text.answer.answer_demand import Requested
from app.text.calls.tools import unknown_fields

MAX_SALT_BYTES = 256
MAX_PRIORITY = 100
Body = TypeVar("Body", bound="AnyBody")


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # of OpenAI; streams here have none
    slow_reader: Literal["pause", "coalesce", "drop"] | None = None


class SamplingBody(StructuredOutputFields, kw_only=True):
    """The fields that chat and completions have in common."""

    options: ClassVar[tuple[str, ...]] = ("stream_options", "reasoning", "response_format", "structured_outputs")

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
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
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
    return_token_ids: bool | None = None
    timings: bool | None = None


class ChatBody(SamplingBody, kw_only=True):
    """The body of `POST /v1/chat/completions`, and of `start.request` on quire.v1."""

    messages: list[Message]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    max_completion_tokens: int | None = None
    context_share: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning: ReasoningOptions | None = None

    @property
    def paths_in_reasoning(self) -> dict[str, str]:
        """The paths of the options in `reasoning` that say the same as other fields, by the names of these."""
        return {} if self.reasoning is None else {each.name: each.path for each in self.reasoning.as_fields()}


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
# msgspec decodes no union of lists of different types: `prompts.read_prompts` checks the field.
PROMPT_SCHEMA = {
    "anyOf": [_TEXT, _IDS, *({"type": "array", "items": kind, "minItems": 1} for kind in (_TEXT, _IDS))],
}


class CompletionBody(SamplingBody, kw_only=True):
    """The body of `POST /v1/completions`; `prompt` is a text, token ids, or a list that holds one of these."""

    prompt: Annotated[Any, msgspec.Meta(extra_json_schema=PROMPT_SCHEMA)]
    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    max_tokens: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0})] | None = None  # 0 with `echo` alone


TEXT_PARTS = ("text", "refusal")
_UNSUPPORTED_IN_MESSAGE = {
    "function_call": "send tool_calls",
    "audio": "leave it out",
    **dict.fromkeys(("prefix", "partial"), "send continue_final_message"),
}
_SAMPLING_FIELDS = frozenset(field.name for field in dataclasses.fields(SamplingParams)) - {
    "logprobs",
    "max_tokens",
    "structured_outputs",
}
# llama.cpp's and vLLM's clients send this number where there is no limit, or no seed.
UNSET_NUMBER = -1
_UNSET_BY_MINUS_ONE = ("seed", "thinking_token_budget")


def learn_body_types(kinds: Iterable[type[AnyBody]]) -> None:
    """Let msgspec inspect the types of bodies: at the first use, it crashes if two threads use it at once."""
    for kind in kinds:
        with suppress(msgspec.ValidationError):
            msgspec.convert({}, kind, str_keys=True)


def read_fields(fields: dict[str, object], kind: type[Body], *, is_strict: bool) -> tuple[Body, tuple[str, ...]]:
    """Return the body as a checked struct and the names of the fields that were ignored. Any thread.

    Raises:
        InvalidValue: a field has a wrong type or is missing, or, with `is_strict`, is unknown.
        UnsupportedParameter: a field requests an unsupported feature.
    """
    ignored = _without_effect(fields, kind)
    if issubclass(kind, SamplingBody):
        _reject_in_messages(fields.get("messages"))
        _reject_in_outputs(fields.get("structured_outputs"))
        _reject_misplaced_schema(fields.get("response_format"))
    try:
        body = msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), fields, kind) from None
    if isinstance(body, SamplingBody):
        check_values(body)
    if isinstance(body, ChatBody) and body.reasoning is not None:
        _spread(body, body.reasoning)
    unknown = [*ignored, *_unknown_inside(fields, body)]
    if unknown and is_strict:
        path, name, known = unknown[0]
        raise InvalidValue(f"Unknown field {path!r}{nearest(name, known)}.", param=path)
    return body, tuple(one.path for one in unknown)


def sampling_params(
    body: SamplingBody, requested: Requested | None, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """Return the sampling parameters of a body; `requested` is what it says about the answer.

    Raises:
        InvalidValue, UnsupportedParameter: see `SamplingParams`.
    """
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    for name in _UNSET_BY_MINUS_ONE:
        if given.get(name) == UNSET_NUMBER:
            del given[name]
    outputs = None if requested is None else requested.outputs
    return SamplingParams(**given, max_tokens=max_tokens, logprobs=logprobs, structured_outputs=outputs)


class _Unknown(NamedTuple):
    """An unknown field: its path, its own name, and the names that are known at its place."""

    path: str
    name: str
    known: tuple[str, ...]


def _without_effect(fields: dict[str, object], kind: type[AnyBody]) -> list[_Unknown]:
    """Return the fields that are ignored, as the table of fields says; reject those that it refuses."""
    ignored = []
    for name, value in fields.items():
        rule = rule_of(name, kind)
        if rule.fate is Fate.REFUSED and not rule.is_harmless(value):
            raise UnsupportedParameter(rule.refusal(name, value), param=name)
        if rule.fate is Fate.IGNORED and not rule.is_harmless(value):
            ignored.append(_Unknown(name, name, kind.__struct_fields__))
    return ignored


def _unknown_inside(fields: dict[str, object], body: AnyBody) -> Iterator[_Unknown]:
    """Yield the unknown fields of objects with options, and of definitions of tools."""
    for name in body.options:
        yield from _unknown_of(fields.get(name), getattr(body, name, None), name)
    if isinstance(body, ChatBody):
        yield from (_Unknown(*found) for found in unknown_fields(body.tools))


def _unknown_of(given: object, read: object, path: str) -> Iterator[_Unknown]:
    """Yield the fields of an object that were not read into the struct, at any depth."""
    if not isinstance(given, dict) or not isinstance(read, msgspec.Struct):
        return
    for name, value in given.items():
        if name in read.__struct_fields__:
            yield from _unknown_of(value, getattr(read, name), f"{path}.{name}")
        elif name != read.__struct_config__.tag_field and name not in UNSUPPORTED_OUTPUTS:
            yield _Unknown(f"{path}.{name}", name, read.__struct_fields__)


def _reject_in_messages(messages: object) -> None:
    """Reject unsupported fields of messages; msgspec checks the types of the others."""
    for index, message in enumerate(messages) if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        for name, instead in _UNSUPPORTED_IN_MESSAGE.items():
            if not is_one_of(message.get(name), OFF):
                path = f"messages[{index}].{name}"
                raise UnsupportedParameter(f"{path} is not supported; {instead}.", param=path)
        content = message.get("content")
        for number, part in enumerate(content) if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else "text"
            if isinstance(kind, str) and kind not in TEXT_PARTS:
                path = f"messages[{index}].content[{number}].type"
                raise UnsupportedParameter(f"{path} is {kind[:100]!r}; only text is supported.", param=path)


def _reject_in_outputs(outputs: object) -> None:
    given, known = outputs if isinstance(outputs, dict) else {}, VllmOutputs.__struct_fields__
    for name in UNSUPPORTED_OUTPUTS:
        if not is_one_of(given.get(name), OFF):
            path = f"structured_outputs.{name}"
            raise UnsupportedParameter(f"{path} is not supported; leave it out.", param=path)
    unknown = [name for name in given if name not in (*known, *UNSUPPORTED_OUTPUTS)]
    if unknown and all(given.get(name) is None for name in known):
        raise InvalidValue(
            f"structured_outputs has only {unknown[0][:100]!r}, which is unknown; set one of {', '.join(known)}.",
            param="structured_outputs",
        )


def _reject_misplaced_schema(given: object) -> None:
    """Reject a schema that is not where OpenAI has it, but directly in `response_format` or in `json_schema`."""
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return
    path, named = "response_format.json_schema", given.get("json_schema")
    if isinstance(named, dict):
        path, named = f"{path}.schema", named.get("schema")
    if named is None:
        raise InvalidValue(
            f'{path} is missing; send the schema there: {{"type": "json_schema", "json_schema": {{"schema": ...}}}}.',
            param=path,
        )


def _spread(body: ChatBody, reasoning: ReasoningOptions) -> None:
    """Set the fields that say the same as `reasoning`."""
    for name, value, _ in reasoning.as_fields():
        if getattr(body, name) not in (None, value):
            raise InvalidValue(f"reasoning and {name} contradict each other; send one of them.", param="reasoning")
        setattr(body, name, value)


def check_values(body: SamplingBody) -> None:
    """Check the fields of a body that are neither parameters of sampling nor of a template.

    Raises:
        InvalidValue: a field is wrong; the error names it.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidValue("stream_options needs `stream: true`.", param="stream_options")
    if body.priority is not None and abs(body.priority) > MAX_PRIORITY:
        raise InvalidValue(
            f"priority is {body.priority}; it must be between -{MAX_PRIORITY} (soonest) and {MAX_PRIORITY}.",
            param="priority",
        )
    if body.cache_salt is not None and not 1 <= len(body.cache_salt.encode()) <= MAX_SALT_BYTES:
        raise InvalidValue(f"cache_salt must have 1 to {MAX_SALT_BYTES} bytes.", param="cache_salt")
    if body.queue_timeout is not None and not 0 <= body.queue_timeout < math.inf:
        raise InvalidValue(
            f"queue_timeout is {body.queue_timeout}; it must be a number of seconds, at least 0 (no limit).",
            param="queue_timeout",
        )
    if body.timeout is not None and not 0 < body.timeout < math.inf:
        raise InvalidValue(f"timeout is {body.timeout}; it must be a number of seconds above 0.", param="timeout")
