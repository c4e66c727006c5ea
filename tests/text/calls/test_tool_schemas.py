"""What schemas of tools tell about parameters."""

import pytest

from app.text.calls.tool_schemas import MAX_DEPTH, Parameters, ToolSchemas, Unwritable

DEFINITIONS = {
    "s": {"type": "string", "minLength": 1},
    "loop": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/loop"}]},
    "chain": {"$ref": "#/$defs/s", "description": "A text."},
    "a/b": {"type": "null"},
}
TYPES = {
    "a": ({"type": "string"}, {"string"}),
    "b": ({"type": ["integer", "null"]}, {"integer", "null"}),
    "c": ({"enum": ["x", 1]}, {"string", "integer"}),
    "d": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    "e": ({}, set()),
    "f": ({"anyOf": [{}, {"type": "null"}]}, set()),
    "g": ({"const": "5"}, {"string"}),
    "h": ({"const": 5}, {"integer"}),
    "i": ({"type": ["string"]}, {"string"}),
    "j": ({"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "time"}]}, {"string"}),
    "k": ({"$ref": "#/$defs/chain"}, {"string"}),
    "l": ({"$ref": "#/$defs/loop"}, set()),
    "m": ({"$ref": "#/$defs/none"}, set()),
    "n": ({"$ref": "http://elsewhere"}, set()),
    "o": ({"$ref": "#/$defs/a~1b"}, {"null"}),
    "p": ({"allOf": [{"type": ["string", "null"]}, {"minLength": 1}, {"type": "string"}]}, {"string"}),
    "q": ({"$ref": "#/properties/a"}, {"string"}),
    "r": (True, set()),
    "s": ({"$ref": "#/$defs/s", "pattern": "a"}, {"string"}),
    "t": ({"type": ["string", "number"], "enum": ["a", 1]}, {"string", "integer"}),
    "u": ({"type": "string", "anyOf": [{"type": ["string", "null"]}, {"type": "integer"}]}, {"string"}),
}


def parameters_of(schema: dict) -> Parameters:
    return Parameters({"name": "f", "parameters": schema})


def test_schemas_tell_types():
    properties = {key: schema for key, (schema, _) in TYPES.items()}
    tool = {"function": {"name": "f", "parameters": {"properties": properties, "$defs": DEFINITIONS}}}
    schemas = ToolSchemas([tool])
    assert {key: set(schemas.types("f", key)) for key in TYPES} == {key: types for key, (_, types) in TYPES.items()}
    assert schemas.types("g", "a") == schemas.types("f", "z") == frozenset()
    assert schemas.names == {"f"}


def test_parameters_are_those_of_properties_and_of_required():
    found = parameters_of(
        {"properties": {"a": {}, "b": {}}, "required": ["c", "b"], "additionalProperties": {"type": "string"}}
    )
    assert found.listed == (("a", {}, False), ("b", {}, True), ("c", {"type": "string"}, True))
    assert found.types(found.schema_of("z")) == {"string"}
    assert not found.is_free
    assert parameters_of({}).is_free
    assert not parameters_of({"additionalProperties": False}).is_free


def test_the_schema_may_be_a_definition():
    found = parameters_of(
        {"$ref": "#/$defs/f", "$defs": {"f": {"properties": {"a": {"$ref": "#/$defs/s"}}}, **DEFINITIONS}}
    )
    found.check_writable()
    assert [one.name for one in found.listed] == ["a"]
    assert found.types(found.schema_of("a")) == {"string"}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"anyOf": [{"required": ["a"]}]}, "'anyOf'"),
        ({"properties": {}, "minProperties": 1}, "'minProperties'"),
        ({"$ref": "#/$defs/none"}, "'$ref'"),
        ({"required": ["a"], "additionalProperties": False}, "requires 'a'"),
        ({"required": ["a"], "properties": {"a": False}}, "requires 'a'"),
    ],
)
def test_what_says_something_of_all_arguments_cannot_be_checked(schema, reason):
    with pytest.raises(Unwritable) as caught:
        parameters_of(schema).check_writable()
    assert caught.value.function == "f"
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, True),
        (True, True),
        (False, False),
        ({"description": "x"}, True),
        ({"type": "string"}, True),
        ({"type": ["string", "integer"]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "A"}, True),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]}, False),
        ({"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}, False),
        ({"type": "integer"}, False),
        ({"type": "string", "minLength": 1}, False),
    ],
)
def test_some_schemas_take_any_text(schema, expected):
    assert parameters_of({}).takes_any_text(schema) is expected


def test_schemas_in_schemas_are_followed_up_to_a_limit():
    """Each once, so that schemas that lead to each other cannot take for ever."""
    wide = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(MAX_DEPTH // 2 - 1)}
    wide[f"d{len(wide)}"] = {"type": "string"}
    assert parameters_of({"properties": {"a": wide["d0"]}, "$defs": wide}).types(wide["d0"]) == {"string"}
    deep = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(9000)}
    found = parameters_of({"properties": {"a": deep["d0"]}, "$defs": deep})
    assert found.types(deep["d0"]) == frozenset()


def test_long_chains_of_references_are_not_followed_again_for_each_parameter(monkeypatch):
    seen: list[str] = []

    def at(self, path, at=Parameters.at):
        seen.append(path)
        return at(self, path)

    monkeypatch.setattr(Parameters, "at", at)
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(2000)}
    parameters_of({"properties": {f"p{number}": {"$ref": "#/$defs/d0"} for number in range(400)}, "$defs": chain})
    assert len(seen) < 400 * 2 * MAX_DEPTH
