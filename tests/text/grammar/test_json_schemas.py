"""Schemas reach the grammar library closed and bounded where that cannot forbid what they ask for."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from app.text.grammar.json_schemas import OPTIONS, for_library
from tests.text.grammar.test_compile import accepts, schema

NUMBER = {"type": "integer"}
OBJECT = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}
A, AB = '{"a": 1}', '{"a": 1, "b": 2}'


@pytest.mark.parametrize(
    ("given", "text", "with_another"),
    [
        (OBJECT, A, AB),
        ({"type": "array", "items": OBJECT}, f"[{A}]", f"[{A}, {AB}]"),
        ({"type": "object", "properties": {"o": OBJECT}}, f'{{"o": {A}}}', f'{{"o": {AB}}}'),
        ({"anyOf": [OBJECT, {"type": "null"}]}, A, AB),
        ({"$ref": "#/$defs/o", "$defs": {"o": OBJECT}}, A, AB),
        ({"type": "object", "properties": {}}, "{}", A),
        ({"type": "object", "patternProperties": {"^a$": NUMBER}, "properties": {}}, A, AB),
        ({"type": "object", "properties": {"properties": NUMBER}}, '{"properties": 1}', '{"properties": 1, "b": 2}'),
    ],
)
def test_an_object_with_properties_has_no_others(given: dict[str, Any], text: str, with_another: str):
    assert accepts(schema(given), text) and not accepts(schema(given), with_another)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"type": "object"}, AB),
        ({**OBJECT, "additionalProperties": True}, AB),
        ({**OBJECT, "additionalProperties": NUMBER}, AB),
        ({"type": "object", "properties": {"a": NUMBER}, "required": ["b"]}, AB),
        ({**OBJECT, "minProperties": 2}, AB),
        ({"allOf": [OBJECT, {"type": "object", "properties": {"b": NUMBER}, "required": ["b"]}]}, AB),
        ({**OBJECT, "anyOf": [{"properties": {"b": NUMBER}, "required": ["b"]}, {"required": ["c"]}]}, AB),
        (
            {
                "allOf": [{"$ref": "#/$defs/o"}, {"properties": {"b": NUMBER}, "required": ["b"]}],
                "$defs": {"o": OBJECT},
            },
            AB,
        ),
        ({"enum": [{"properties": {}}, 1]}, '{"properties": {}}'),
        ({**OBJECT, "enum": [{"a": 1}, {"a": 1, "b": 2}]}, AB),
        ({**OBJECT, "const": {"a": 1, "b": 2}}, AB),
        ({**OBJECT, "unevaluatedProperties": True}, AB),
        (
            {
                "$ref": "#/components/ab",
                "components": {"ab": {"$ref": "#/$defs/o", "properties": {"b": NUMBER}, "required": ["b"]}},
                "$defs": {"o": OBJECT},
            },
            AB,
        ),
    ],
)
def test_what_a_schema_asks_for_stays_possible(given: dict[str, Any], text: str):
    assert accepts(schema(given), text)


@pytest.mark.parametrize(
    ("name", "longest", "too_long"),
    [
        ("time", "12:34:56.123456789+00:00", "12:34:56.12345678901234567+00:00"),
        ("date-time", "2025-03-14T09:26:53.123456789+00:00", "2025-03-14T09:26:53.12345678901234567+00:00"),
        ("email", "a" * 60 + "@" + "b." * 60 + "no", "a" * 60 + "@" + "b." * 120 + "no"),
    ],
)
def test_texts_of_formats_have_a_largest_length(name: str, longest: str, too_long: str):
    given = {"type": "string", "format": name}
    assert accepts(schema(given), f'"{longest}"') and not accepts(schema(given), f'"{too_long}"')
    assert accepts(schema({**given, "maxLength": 500}), f'"{too_long}"')


def test_options_are_ours_and_the_given_schema_is_unchanged():
    given = {**OBJECT, "x-guidance": {"a": 1}, "properties": {"a": {"type": "string", "format": "time"}}}
    before = deepcopy(given)
    found = for_library(given)
    assert given == before and found["x-guidance"] == OPTIONS
    assert found["additionalProperties"] is False and found["properties"]["a"]["maxLength"] == 24
