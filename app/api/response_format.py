"""The fields of a body that say what its answer must be, as structs: they check the fields, and describe them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from app.api.any_body import AnyBody
from app.text.grammar.grammar_sources import MAX_CHOICE_BYTES, MAX_CHOICES, MAX_SOURCE_BYTES

# A schema, or its text. What these types describe and do not check is checked when they become a grammar.
JsonSchema = dict[str, Any] | str | bool
Source = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_SOURCE_BYTES})]
ChoiceText = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_CHOICE_BYTES})]
Choices = Annotated[list[ChoiceText], msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_CHOICES})]


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """A JSON object; `schema` is llama.cpp's."""

    schema: JsonSchema | None = None


class NamedSchema(msgspec.Struct, kw_only=True):
    """A schema with OpenAI's fields around it. `strict` changes nothing: a schema always binds."""

    schema: JsonSchema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


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
