"""JSON schemas as the grammar library gets them: with our options, and narrower where an answer might never end.

What satisfies the result satisfies the schema, if `oneOf` is read as `anyOf`. Two things are narrower, because models
go on where they may:

- An object that has `properties` and does not mention `additionalProperties` has no others, as in llama.cpp. This is
  left out where it could forbid what the schema asks for: for all objects where several schemas speak of one of them
  (`allOf`, or `anyOf` or `$ref` beside `properties`) or a `$ref` leads to no definition, and for an object whose values
  are listed or of which a required name is not among the properties.
- Texts of some formats have a largest length: a time may have any number of digits behind its seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from app.contract.errors import InvalidValue
from app.text.grammar.schema_ends import check_ends
from app.text.grammar.schema_keywords import effective

# At most one space wherever JSON allows white space: models may write `{"a": 1}`, and cannot write spaces for ever.
OPTIONS = {"whitespace_flexible": False, "whitespace_pattern": " ?", "coerce_one_of": True}
# Nine digits of a second and an offset; what mail allows (RFC 5321); what DNS allows; `P` and seven numbers.
MAX_FORMAT_CHARS = {"time": 24, "date-time": 35, "email": 254, "hostname": 253, "duration": 64}
_OF_OBJECTS = frozenset({"properties", "patternProperties", "additionalProperties", "required", "minProperties"})
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
DEFINITIONS = ("#/$defs/", "#/definitions/")
_OTHERS = ("allOf", "anyOf", "oneOf", "items", "prefixItems", "additionalProperties")


def checked_schema(source: str) -> dict[str, Any]:
    """Return the text of a schema as the library gets it.

    Raises:
        InvalidValue: it is too large, has what cannot be enforced, or is satisfied by no text that
            ends; `param` is not set.
    """
    return library_schema(orjson.loads(source))


def library_schema(given: Any) -> dict[str, Any]:
    """Return a schema as the library gets it, and raise the same errors as `checked_schema`. Any thread."""
    schema = effective(given)
    if schema is False:
        raise InvalidValue("The schema is false, which no text satisfies.")
    return for_library({} if schema is True else schema)


def for_library(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, as `effective` returns it, with our options and the limits above. Any thread.

    Raises:
        InvalidValue: it has no value that ends; `param` is not set.
    """
    own = _copied(schema)
    inner = list(_schemas(own))
    is_combined = any(map(_combines, inner))
    for each in inner:
        if not is_combined and _may_be_closed(each):
            each["additionalProperties"] = False
        _limit(each)
    check_ends(own)
    return {**own, "x-guidance": OPTIONS}


def _schemas(schema: object) -> Iterator[dict[str, Any]]:
    """Yield a schema and those in it; values of `enum`, `const` and `default` are none."""
    if isinstance(schema, list):
        for each in schema:
            yield from _schemas(each)
    elif isinstance(schema, dict):
        yield schema
        for key in _NAMED:
            named = schema.get(key)
            yield from _schemas(list(named.values()) if isinstance(named, dict) else None)
        for key in _OTHERS:
            yield from _schemas(schema.get(key))


def _combines(schema: dict[str, Any]) -> bool:
    """Return whether several schemas may speak of one object's properties, or one that `_schemas` does not yield."""
    target = schema.get("$ref")
    if isinstance(target, str) and target != "#" and not target.startswith(DEFINITIONS):
        return True
    parts = schema.get("allOf")
    num_parts = len(parts) if isinstance(parts, list) else 1
    return num_parts > 1 or len(schema.keys() & _COMBINING) + bool(schema.keys() & _OF_OBJECTS) > 1


def _may_be_closed(schema: dict[str, Any]) -> bool:
    properties, required, least = schema.get("properties"), schema.get("required", []), schema.get("minProperties", 0)
    return (
        isinstance(properties, dict)
        and not schema.keys() & {"additionalProperties", "enum", "const"}
        and isinstance(required, list)
        and all(name in properties for name in required if isinstance(name, str))
        and isinstance(least, int)
        and least <= len(properties)
    )


def _limit(schema: dict[str, Any]) -> None:
    name, has_least = schema.get("format"), "minLength" in schema
    most = MAX_FORMAT_CHARS.get(name) if isinstance(name, str) else None
    if most is not None and schema.get("type") == "string" and not has_least:
        schema.setdefault("maxLength", most)


def _copied(value: Any) -> Any:
    """Return JSON whose objects and lists may be changed."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
