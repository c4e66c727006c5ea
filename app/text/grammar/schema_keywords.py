"""JSON schemas without what excludes no value: annotations, unknown keywords, and keywords that allow everything.

Every keyword of JSON Schema, drafts 4 to 2020-12, is one of these:

- enforced: the grammar library knows it;
- judged here by its value: what excludes something is rejected, because the library cannot enforce it, and the rest is
  left out, such as `uniqueItems: false`;
- left out, as are the keywords of OpenAPI: it describes (`description`, `example`, `nullable`), or acts only together
  with one that is judged (`then`, `minContains`).

Only keywords are left out, never names of properties or what is inside `enum` and `const`; and none that a reference
leads through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from app.contract.errors import InvalidValue
from app.text.grammar.lark_text import as_json

MAX_SCHEMA_DEPTH = 32
MAX_PROPERTIES = 400
_VALUES = frozenset({
    "$anchor", "$id", "$ref", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "id", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
    "required", "type",
})  # fmt: skip
# Values of keywords that the library knows which exclude nothing.
_EMPTY: Mapping[str, Any] = {
    "allOf": [], "minItems": 0, "minLength": 0, "minProperties": 0, "patternProperties": {}, "required": [],
}  # fmt: skip
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_INNER = frozenset({"allOf", "anyOf", "oneOf", "items", "prefixItems", "additionalProperties"})
FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid",
})  # fmt: skip
"""The formats that the library enforces; others describe."""
_DRAFT = re.compile(r"https?://json-schema\.org/(?:draft-0[467]|draft/20(?:19-09|20-12))/schema#?")
_IDENTITY = frozenset({"$schema", "$id", "id", "$anchor", "$defs", "definitions"})  # what names a schema


def effective(schema: Any) -> Any:
    """Return a schema without what excludes no value; False if it excludes all of them. Any thread.

    Raises:
        InvalidValue: a keyword cannot be enforced, the schema is nested too deeply, or an object of it has too many
            properties; the message says where, `param` is not set.
    """
    return _Reduction(schema).of(schema, ("#",), 1)


_Path = tuple[
    object, ...
]  # the keys that lead to a schema; joined for each, a long name would cost its length each time


class _Reduction:
    """Reduces one schema, and those in it, each once."""

    def __init__(self, root: Any) -> None:
        self._through = frozenset(_keywords_on_the_way(root))
        self._known: dict[
            int, Any
        ] = {}  # by id; a `then` is both an end of its `if` and what a reference leads through

    def of(self, schema: Any, path: _Path, depth: int) -> Any:
        """Return a schema without what excludes nothing; what is no schema stays, for the library to reject."""
        if not isinstance(schema, dict):
            return schema
        if id(schema) not in self._known:
            self._known[id(schema)] = self._reduced(schema, path, depth)
        return self._known[id(schema)]

    def _reduced(self, schema: Mapping[str, Any], path: _Path, depth: int) -> Any:
        if depth > 2 * MAX_SCHEMA_DEPTH:  # a schema in a schema is two levels of JSON deeper
            raise InvalidValue(f"The schema is nested more than {MAX_SCHEMA_DEPTH} levels deep.")
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            at = (*path, key)
            if key in _EMPTY and type(value) is type(_EMPTY[key]) and value == _EMPTY[key]:
                continue
            if key in _VALUES or (key in _FORMATTED and _FORMATTED[key](value)):
                kept[key] = value
            elif key in _NAMED or self._has_schemas(key, schema):
                kept[key] = self._inner(key, value, at, depth)
            elif key in _JUDGED:
                inner = self._ends(schema, path, depth) if key == "if" else self._inner(key, value, at, depth)
                if key == "not" and _allows_everything(inner):
                    return False
                if not _JUDGED[key](inner, schema):
                    place = "/".join(map(str, at))
                    raise InvalidValue(
                        f"{place[:200]} is {as_json(value)[:80]}, which cannot be enforced; leave the keyword out, and "
                        "check the answer for it."
                    )
        return _with_meaning_of_dropped(kept, schema)

    def _has_schemas(self, key: str, schema: Mapping[str, Any]) -> bool:
        """Return whether a keyword has schemas in it: a reference may lead through an unknown one (`components`)."""
        if key == "additionalItems":
            return isinstance(schema.get("items"), list)
        return key in _INNER or (key in self._through and key not in _JUDGED)

    def _inner(self, key: str, value: Any, path: _Path, depth: int) -> Any:
        """Return the value of a keyword, with the schemas in it reduced."""
        if isinstance(value, list):
            return [self.of(each, (*path, index), depth + 2) for index, each in enumerate(value)]
        if key not in _NAMED | _BY_NAME or not isinstance(value, dict):
            return self.of(value, path, depth + 1)
        if key == "properties" and len(value) > MAX_PROPERTIES:
            raise InvalidValue(
                f"An object of the schema has {len(value)} properties; at most {MAX_PROPERTIES} are allowed."
            )
        return {name: self.of(each, (*path, name), depth + 2) for name, each in value.items()}

    def _ends(self, schema: Mapping[str, Any], path: _Path, depth: int) -> list[Any]:
        """Return the schemas that a condition leads to: one if it is always or never true, else two."""
        condition = self.of(schema["if"], (*path, "if"), depth + 1)
        ends = ["then"] if _allows_everything(condition) else ["else"] if condition is False else ["then", "else"]
        return [self.of(schema.get(key, True), (*path, key), depth + 1) for key in ends]


def _allows_everything(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and schema.keys() <= _IDENTITY)


def _allows_all_strings(schema: Any) -> bool:
    if isinstance(schema, dict) and schema.keys() - _IDENTITY == {"type"}:
        types = schema["type"]
        return "string" in (types if isinstance(types, list) else [types])
    return _allows_everything(schema)


def _has_enough(inner: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether an array has as many items as it must contain, whatever they are."""
    fewest, needed = schema.get("minItems", 0), schema.get("minContains", 1)
    return needed == 0 or (
        _allows_everything(inner) and isinstance(fewest, int) and isinstance(needed, int) and fewest >= needed
    )


def _depends_on_nothing(dependencies: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether all that may depend on a property is required anyway, or allows everything."""
    required = schema.get("required")
    always = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return isinstance(dependencies, dict) and all(
        all(isinstance(name, str) and name in always for name in each)
        if isinstance(each, list)
        else _allows_everything(each)
        for each in dependencies.values()
    )


def _with_meaning_of_dropped(kept: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reduced schema with what two of the dropped keywords mean in the words of others."""
    if "unevaluatedProperties" in schema and "properties" in schema:
        kept.setdefault("additionalProperties", True)  # it is open because its author says so
    if isinstance(anchor := schema.get("$dynamicAnchor"), str):
        kept.setdefault("$anchor", anchor)
    return kept


_Test = Callable[[Any, Mapping[str, Any]], bool]
# Keywords of which the library knows some values; what is no text it rejects.
_FORMATTED: Mapping[str, Callable[[Any], bool]] = {
    "format": lambda value: not isinstance(value, str) or value in FORMATS,
    "$schema": lambda value: isinstance(value, str) and _DRAFT.fullmatch(value) is not None,
}
# Keywords that the library does not know; those for which this is true exclude nothing. What is inside is reduced.
_JUDGED: Mapping[str, _Test] = {
    "not": lambda inner, schema: inner is False,
    "uniqueItems": lambda inner, schema: inner is False or schema.get("maxItems") in (0, 1),
    "propertyNames": lambda inner, schema: _allows_all_strings(inner),
    "unevaluatedProperties": lambda inner, schema: _allows_everything(inner) or "additionalProperties" in schema,
    "unevaluatedItems": lambda inner, schema: _allows_everything(inner) or isinstance(schema.get("items"), dict | bool),
    "contains": lambda inner, schema: "maxContains" not in schema and _has_enough(inner, schema),
    "if": lambda inner, schema: all(map(_allows_everything, inner)),
    "dependentRequired": _depends_on_nothing,
    "dependentSchemas": _depends_on_nothing,
    "dependencies": _depends_on_nothing,
    "$dynamicRef": lambda inner, schema: False,
    "$recursiveRef": lambda inner, schema: False,
}
_BY_NAME = frozenset({"dependentRequired", "dependentSchemas", "dependencies"})


def _keywords_on_the_way(root: Any) -> Iterator[str]:
    """Yield the keywords that references lead through; a name behind `properties` or `$defs` is none."""
    for each in objects_in(root):
        reference = each.get("$ref")
        _, _, pointer = reference.partition("#/") if isinstance(reference, str) else ("", "", "")
        is_name = False
        for part in unquote(pointer).split("/"):
            if not is_name:
                yield unescaped(part)
            is_name = not is_name and part in _NAMED


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in parsed JSON, whatever they are in a schema. Any thread."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            pending += each.values()
            yield each


def unescaped(part: str) -> str:
    """Return the key that a part of a JSON pointer stands for. Any thread."""
    return part.replace("~1", "/").replace("~0", "~")
