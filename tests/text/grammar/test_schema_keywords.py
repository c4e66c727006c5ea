"""What excludes nothing is left out of a schema; what excludes something is enforced, or rejected with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.text.grammar.compile import compile_grammar
from app.text.grammar.schema_keywords import FORMATS, MAX_PROPERTIES, MAX_SCHEMA_DEPTH, effective
from tests.text.grammar.test_compile import accepts, schema, vocabulary

ROOT = Path(__file__).parents[3]
INTEGER = {"type": "integer"}
# Keywords that the library does not know, each with values that exclude nothing, and some that exclude something.
JUDGED: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "not": ([{"not": False}, {"not": {"not": {}}}], [{"not": INTEGER}]),
    "if": (
        [
            {"if": True},
            {"if": INTEGER},
            {"if": INTEGER, "then": True, "else": {"title": "a"}},
            {"if": {}, "then": True, "else": False},
            {"if": False, "then": False},
        ],
        [{"if": True, "then": INTEGER}, {"if": INTEGER, "else": False}, {"if": False, "then": True, "else": INTEGER}],
    ),
    "contains": (
        [{"contains": INTEGER, "minContains": 0}],
        [{"contains": {}}, {"contains": INTEGER, "minContains": 1}],
    ),
    "uniqueItems": ([{"uniqueItems": False}, {"uniqueItems": True, "maxItems": 1}], [{"uniqueItems": True}]),
    "unevaluatedItems": (
        [{"unevaluatedItems": True}, {"unevaluatedItems": {}}, {"unevaluatedItems": False, "items": INTEGER}],
        [{"unevaluatedItems": False}, {"unevaluatedItems": INTEGER, "prefixItems": [INTEGER]}],
    ),
    "unevaluatedProperties": (
        [{"unevaluatedProperties": {}}, {"unevaluatedProperties": False, "additionalProperties": INTEGER}],
        [{"unevaluatedProperties": False}, {"unevaluatedProperties": INTEGER}],
    ),
    "propertyNames": (
        [{"propertyNames": {"type": "string"}}, {"propertyNames": {"type": ["null", "string"], "title": "key"}}],
        [{"propertyNames": {"type": "string", "pattern": "a"}}, {"propertyNames": False}],
    ),
    "dependentRequired": (
        [
            {"dependentRequired": {}},
            {"dependentRequired": {"a": []}},
            {"dependentRequired": {"a": ["b"]}, "required": ["b"]},
        ],
        [{"dependentRequired": {"a": ["b"]}}, {"dependentRequired": {"a": ["b"]}, "required": ["a"]}],
    ),
    "dependentSchemas": ([{"dependentSchemas": {"a": {}}}], [{"dependentSchemas": {"a": INTEGER}}]),
    "dependencies": ([{"dependencies": {"a": [], "b": True}}], [{"dependencies": {"a": ["b"]}}]),
    "$dynamicRef": ([{"$dynamicAnchor": "a"}], [{"$dynamicRef": "#a"}]),
    "$recursiveRef": ([{"$recursiveAnchor": True}], [{"$recursiveRef": "#"}]),
}
# Keywords that exclude nothing, whatever their value, where the judged ones are missing.
FREE = [
    "$comment", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated",
    "description", "discriminator", "else", "example", "examples", "externalDocs", "maxContains", "minContains",
    "nullable", "readOnly", "then", "title", "writeOnly", "x-guidance", "x-order", "xml",
]  # fmt: skip
ANY_OTHER = '{"a": [1, {"b": "c"}]}'


@pytest.mark.parametrize("given", [each for free, _ in JUDGED.values() for each in free], ids=str)
def test_a_value_that_excludes_nothing_is_dropped(given: dict[str, Any]):
    kept = {"$anchor", "additionalProperties", "items", "maxItems", "required"}
    assert effective({**INTEGER, **given}).keys() <= {"type"} | kept
    assert accepts(schema({"anyOf": [given, {"const": 0}]}), "[]")


@pytest.mark.parametrize("limits", [{"minItems": 1}, {"minItems": 3, "minContains": 2}], ids=str)
def test_items_that_may_be_anything_are_contained_in_an_array_that_has_enough(limits: dict[str, Any]):
    array = {"type": "array", "contains": True, **limits}
    assert "contains" not in effective(array)
    with pytest.raises(InvalidValue, match=r"^#/contains is true"):
        effective({**array, "minContains": 4})


@pytest.mark.parametrize(
    ("keyword", "given"), [(name, each) for name, (_, judged) in JUDGED.items() for each in judged], ids=str
)
def test_a_value_that_excludes_something_is_rejected_with_its_place(keyword: str, given: dict[str, Any]):
    with pytest.raises(InvalidValue, match="which cannot be enforced") as caught:
        compile_grammar(schema({"type": "object", "properties": {"p": {"items": given}}}), vocabulary())
    assert caught.value.message.startswith(f"#/properties/p/items/{keyword} is ")


def test_the_reference_lists_the_keywords_that_are_rejected():
    text = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
    listed = re.search(r"the schema: (`not`.*?)\.", text, re.DOTALL)
    assert listed is not None and set(re.findall(r"`(.+?)`", listed[1])) == set(JUDGED)


@pytest.mark.parametrize("keyword", FREE)
@pytest.mark.parametrize("value", [True, {"type": "null"}, ["a"], "a", 7], ids=str)
def test_annotations_are_dropped_whatever_they_say(keyword: str, value: Any):
    assert effective({keyword: value, "items": [{keyword: value}]}) == {"items": [{}]}
    assert accepts(schema({keyword: value}), ANY_OTHER)


def test_empty_values_of_enforced_keywords_are_dropped_and_wrong_ones_are_not():
    empty = {"allOf": [], "minItems": 0, "minLength": 0, "minProperties": 0, "patternProperties": {}, "required": []}
    assert effective({**INTEGER, **empty}) == INTEGER
    wrong = {"allOf": {}, "minItems": False, "required": {}}
    assert effective(wrong) == wrong


def test_an_open_object_stays_open_and_a_reference_gets_nothing_beside_it():
    assert effective({"$ref": "#/$defs/a", "unevaluatedProperties": True}) == {"$ref": "#/$defs/a"}
    given = {"properties": {"a": INTEGER}, "unevaluatedProperties": True}
    assert effective(given) == {"properties": {"a": INTEGER}, "additionalProperties": True}


def test_names_and_listed_values_are_no_keywords():
    named = {name: {**INTEGER, "description": "long"} for name in ("title", "description", "not", "uniqueItems")}
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        assert effective({key: named}) == {key: dict.fromkeys(named, INTEGER)}
    for values in ({"const": {"title": 1, "not": {}}}, {"enum": [{"description": "a"}, ["x"]]}):
        assert effective(values) == values


def test_no_value_at_all_is_false():
    assert effective({"not": {}}) is effective({"not": {"title": "never"}}) is False
    given = {"type": "object", "properties": {"a": {"not": {}}, "b": INTEGER}, "required": ["b"]}
    assert accepts(schema(given), '{"b": 1}') and not accepts(schema(given), '{"a": 1, "b": 1}')


@pytest.mark.parametrize("name", ["password", "int64", "double", "idn-email", "json-pointer", "byte", "color"])
def test_unknown_formats_describe(name: str):
    assert accepts(schema({"type": "string", "format": name}), '"x"')
    assert accepts(schema({"type": ["integer", "string"], "format": name}), "12")


def test_known_formats_are_enforced():
    for name in FORMATS - {"unknown"}:
        assert not accepts(schema({"type": "string", "format": name}), '"? ?"'), name


@pytest.mark.parametrize(
    "given",
    [
        {"$ref": "#/components/schemas/One", "components": {"schemas": {"One": {**INTEGER, "uniqueItems": False}}}},
        {"$ref": "#/a~1%7e%62/sch%65mas/One", "a/~b": {"schemas": {"One": {**INTEGER, "uniqueItems": False}}}},
        {"$ref": "#/$defs/a/description", "$defs": {"a": {"description": INTEGER}}},
        {"$ref": "#one", "$defs": {"title": {**INTEGER, "$dynamicAnchor": "one"}}},
        {"$ref": "#/$defs/title", "$defs": {"title": {**INTEGER, "title": "One", "default": {"$ref": "#/nowhere"}}}},
    ],
    ids=str,
)
def test_what_references_lead_to_stays(given: dict[str, Any]):
    assert accepts(schema(given), "12") and not accepts(schema(given), '"a"')


@pytest.mark.parametrize("uri", ["http://json-schema.org/schema#", "https://example.com/meta", "x", 5])
def test_the_schema_of_schemas_matters_only_if_it_is_a_draft(uri: Any):
    assert effective({"$schema": uri}) == {} and accepts(schema({"$schema": uri, **INTEGER}), "1")


def test_items_of_2020_and_of_older_drafts_hold():
    new = {"type": "array", "prefixItems": [INTEGER], "additionalItems": False, "minItems": 1}
    assert accepts(schema(new), "[1]") and not accepts(schema(new), '["x"]')
    old = {"type": "array", "items": [INTEGER], "additionalItems": False}
    assert accepts(schema(old), "[1]") and not accepts(schema(old), "[1, 2]")


def test_levels_and_properties_are_limited_where_there_are_schemas():
    deep: dict[str, Any] = INTEGER
    for _ in range(MAX_SCHEMA_DEPTH):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(InvalidValue, match=f"more than {MAX_SCHEMA_DEPTH} levels"):
        effective(deep)
    wide = {f"p{index}": INTEGER for index in range(MAX_PROPERTIES + 1)}
    with pytest.raises(InvalidValue, match=f"has {len(wide)} properties"):
        effective({"properties": wide})
    for harmless in ({"default": deep, "examples": [{"properties": wide}]}, {"const": {"properties": wide}}):
        effective(harmless)
