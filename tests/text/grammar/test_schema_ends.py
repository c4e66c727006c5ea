"""A schema whose values would each contain another one is rejected: its answers would never end."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from app.contract.errors import InvalidValue
from app.contract.grammar import StructuredOutputs
from app.text.grammar import schema_ends
from app.text.grammar.compile import compile_grammar
from app.text.grammar.grammar_sources import grammar_of
from app.text.grammar.rule_parts import Part, sequence
from app.text.grammar.schema_ends import endless_place
from benchmarks.schemas.cases import cases
from tests.text.grammar.made_schemas import make_schema
from tests.text.grammar.test_compile import vocabulary

SELF = {"$ref": "#"}
INTEGER = {"type": "integer"}


def holding(inner: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"next": inner}, "required": ["next"], **fields}


MUTUAL = {"a": holding({"$ref": "#/$defs/b"}), "b": holding({"$ref": "#/$defs/a"})}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (holding(SELF), "#"),
        (holding(holding(SELF)), "#"),
        ({"$ref": "#/$defs/a", "$defs": MUTUAL}, "#/$defs/a"),
        (holding({"anyOf": [SELF, holding(SELF)]}), "#"),
        (holding({"oneOf": [SELF]}), "#"),
        (holding({"allOf": [INTEGER, SELF]}), "#"),
        ({"type": "array", "items": SELF, "minItems": 1}, "#"),
        ({"type": "array", "prefixItems": [INTEGER, SELF], "minItems": 2}, "#"),
        ({"type": "array", "prefixItems": [INTEGER], "items": SELF, "minItems": 2}, "#"),
        ({"type": "array", "items": [INTEGER, SELF], "minItems": 2}, "#"),
        (holding(SELF, type=["array", "object"], items=SELF, minItems=1), "#"),
        ({"type": "object", "additionalProperties": SELF, "minProperties": 1}, "#"),
        ({"type": "object", "properties": {"a": SELF, "b": SELF}, "minProperties": 1}, "#"),
        ({"type": "object", "additionalProperties": SELF, "required": ["a"]}, "#"),
        ({"type": "object", "patternProperties": {"^a": SELF}, "minProperties": 1, "additionalProperties": False}, "#"),
        (holding({"$ref": "#me"}, **{"$anchor": "me"}), "#me"),
        (holding({"$ref": "http://a.b/c"}, **{"$id": "http://a.b/c"}), "http://a.b/c#"),
        ({"$ref": "c#/$defs/a", "$id": "c", "$defs": {"a": holding({"$ref": "#/$defs/a"})}}, "#/$defs/a"),
        ({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": holding({"$ref": "#/$defs/a b~1c"})}}, "#/$defs/a b~1c"),
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_without_a_value_that_ends_is_rejected_with_its_place(schema: dict[str, Any], place: str):
    with pytest.raises(InvalidValue, match="can never be completed") as caught:
        compile_grammar(grammar_of(StructuredOutputs(json=schema)), vocabulary())
    assert f"completed: {place!r} requires" in caught.value.message and caught.value.param is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": SELF}},
        holding({"anyOf": [SELF, {"type": "null"}]}),
        holding(SELF, type=["object", "null"]),
        {"properties": {"next": SELF}, "required": ["next"]},  # a number is such a value
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [INTEGER, SELF], "minItems": 1},
        {"type": "object", "additionalProperties": SELF},
        {"type": "object", "properties": {"a": SELF, "b": INTEGER}, "minProperties": 1},
        {"type": "object", "properties": {"a": SELF, "b": INTEGER}, "minProperties": 1, "additionalProperties": False},
        {"anyOf": [holding(SELF), INTEGER]},
        holding(SELF, enum=[{"next": 1}]),
        holding(SELF, const={"next": 1}),
        {"$ref": "#/$defs/a", "$defs": {"a": INTEGER, "b": holding({"$ref": "#/$defs/b"})}},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "other.json"},
        {"$ref": "#nowhere"},
        {"type": "object", "patternProperties": {"^a": SELF}, "minProperties": 1},
        {"type": "object", "patternProperties": {"^a": SELF, "^b": INTEGER}, "minProperties": 1},
        {"type": {"a": 1}, "required": 5, "properties": [], "items": 7, "anyOf": 3, "minItems": "x"},
    ],
    ids=str,
)
def test_what_has_a_value_that_ends_has_no_such_place(schema: dict[str, Any]):
    assert endless_place(schema) is None


def test_ordinary_schemas_have_no_such_place():
    assert [case.name for case in cases() if endless_place(case.schema) is not None] == []
    assert [seed for seed in range(300) if endless_place(make_schema(seed)) is not None] == []


def test_what_is_shared_by_many_values_is_looked_at_once():
    shared: dict[str, Any] = {"type": "string"}
    for _ in range(30):
        shared = {"type": "object", "required": ["a", "b"], "additionalProperties": shared}
    assert endless_place({"allOf": [shared, SELF]}) == "#"


def test_a_schema_with_many_names_is_read_once(monkeypatch: pytest.MonkeyPatch):
    read: list[Part] = []
    monkeypatch.setattr(schema_ends, "sequence", lambda parts: read.append(sequence(parts)) or read[-1])
    large = {"anyOf": [{"type": "object"} for _ in range(100)]}
    names = ["".join(name) for name in product(("~", "~0", "%7E"), repeat=4)]
    schema = {"$defs": {"~~~~": {"allOf": [large]}}, "anyOf": [{"$ref": f"#/$defs/{name}/allOf/0"} for name in names]}
    assert endless_place(schema) is None
    assert len(read) < 1000
