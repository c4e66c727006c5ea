"""The fields of a body that say what its answer must be, as structs: they check the fields, and describe them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.api.body.any_body import AnyBody
from app.text.grammar.grammar_sources import MAX_CHOICE_BYTES, MAX_CHOICES, MAX_SOURCE_BYTES

# A schema, or its text. What these types describe and do not check is checked when they become a grammar.
JsonSchema = dict[str, Any] | str | bool
Source = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_SOURCE_BYTES})]
ChoiceText = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_CHOICE_BYTES})]
Choices = Annotated[list[ChoiceText], msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_CHOICES})]


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """The fields of all formats. An unknown one would say what the answer must be, so none is ignored.

    `name`, `description` and `strict` change nothing: a schema always binds.
    """

    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(_Format, tag="text"):
    """Any text."""

    schema: None = None
    value: None = None
    json_schema: None = None


class JsonObjectFormat(_Format, tag="json_object"):
    """A JSON object; `schema` is llama.cpp's, `value` the same in huggingface_hub."""

    schema: JsonSchema | None = None
    value: JsonSchema | None = None
    json_schema: None = None


class JsonFormat(_Format, tag="json"):
    """TGI's name for JSON that satisfies the schema `value`."""

    value: JsonSchema


class RegexFormat(_Format, tag="regex"):
    """TGI's name for a text that matches the regular expression `value`."""

    value: Source


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema with OpenAI's fields around it, which change nothing."""

    schema: JsonSchema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(_Format, tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: NamedSchema
    schema: None = None
    value: None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | JsonFormat | RegexFormat


class VllmOutputs(msgspec.Struct, kw_only=True):
    """vLLM's `structured_outputs`: exactly one field is set."""

    json: JsonSchema | None = None
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    json_object: bool | None = None


# Fields of vLLM's that would change the answer.
UNSUPPORTED_OUTPUTS = (
    "structural_tag", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern",
)  # fmt: skip


class StructuredOutputFields(AnyBody, kw_only=True):
    """The fields of a body that say what the answer must be; null is the same as leaving a field out."""

    response_format: ResponseFormat | None = None
    structured_outputs: VllmOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None
    json_schema: JsonSchema | None = None
    regex: Source | None = None
    ebnf: Source | None = None
    grammar: Source | None = None
    thinking_token_budget: int | None = None
