"""Which JSON schemas have a value that ends: one that requires itself has none, and would be written for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from app.contract.errors import InvalidValue
from app.text.grammar.rule_parts import FREE, Part, choice, endless, reference, sequence
from app.text.grammar.schema_keywords import MAX_SCHEMA_DEPTH, objects_in, unescaped

ROOT = "#"
_WITH_PARTS = frozenset({"object", "array"})


def check_ends(schema: Any) -> None:
    """Reject a schema that no value satisfies because each would have to contain another one.

    Raises:
        InvalidValue: the message names the place; `param` is not set.
    """
    if (place := endless_place(schema)) is not None:
        raise InvalidValue(
            f"The schema can never be completed: {place[:200]!r} requires a value of itself in each of its values. "
            "Make one of them optional, or allow null."
        )


def endless_place(schema: Any) -> str | None:
    """Return the place in a schema that has no value that ends; None if there is none. Linear in its size."""
    return endless(_Rules(schema).rules, ROOT)


class _Rules:
    """The parts of a schema, and of each schema that a reference leads to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._named = dict(_named(root))
        self._waiting = [ROOT]
        self._known: dict[int, Part] = {}  # by id; references lead to one schema by many names, or into each other
        self.rules: dict[str, Part] = {}
        while self._waiting:
            place = self._waiting.pop()
            if place not in self.rules:
                self.rules[place] = self._part(self._at(place), 1)

    def _part(self, schema: Any, depth: int) -> Part:
        """Return the parts of a schema; the library itself finds what no value satisfies for other reasons."""
        if not isinstance(schema, dict) or depth > 2 * MAX_SCHEMA_DEPTH:
            return FREE
        if (part := self._known.get(id(schema))) is None:
            part = self._known[id(schema)] = sequence(list(self._limits(schema, depth + 1)))
        return part

    def _limits(self, schema: Mapping[str, Any], depth: int) -> Iterator[Part]:
        """Yield all that a value must satisfy; what limits it otherwise is left to the library."""
        if isinstance(target := schema.get("$ref"), str):
            yield self._reference(target)
        yield from self._listed(schema, "allOf", depth)
        for key in ("anyOf", "oneOf"):
            if branches := self._listed(schema, key, depth):
                yield choice(branches)
        given = schema.get("type")
        kinds = set(map(str, given)) if isinstance(given, list) else {str(given)}
        if kinds and kinds <= _WITH_PARTS and not schema.keys() & {"enum", "const"}:
            parts = {"object": self._object, "array": self._array}
            yield choice([parts[kind](schema, depth) for kind in sorted(kinds)])

    def _reference(self, target: str) -> Part:
        identifier, _, rest = target.partition(ROOT)
        place = f"{identifier}{ROOT}{unquote(rest).rstrip('/')}"
        self._waiting.append(place)
        return reference(place)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Part:
        given, required = schema.get("properties"), schema.get("required")
        properties = {
            name: self._part(each, depth + 1) for name, each in (given if isinstance(given, dict) else {}).items()
        }
        additional, patterns = schema.get("additionalProperties"), schema.get("patternProperties")
        unnamed = [self._part(each, depth + 1) for each in (patterns.values() if isinstance(patterns, dict) else ())]
        if additional is not False:
            unnamed.append(self._part(additional, depth))
        others = choice(unnamed) if unnamed else FREE
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        needed = [properties.pop(name, others) for name in dict.fromkeys(names)]
        num_more, listed = max(_count(schema.get("minProperties")) - len(needed), 0), list(properties.values())
        if not unnamed:
            return sequence([*needed, Part(listed, min(num_more, len(listed)))])
        return sequence([*needed, choice([others, Part(listed, num_more)])]) if num_more else sequence(needed)

    def _array(self, schema: Mapping[str, Any], depth: int) -> Part:
        items, first = schema.get("items"), schema.get("prefixItems")
        if isinstance(items, list):  # of older drafts
            first, items = items, schema.get("additionalItems")
        num_items = _count(schema.get("minItems"))
        fixed = [self._part(each, depth + 1) for each in (first if isinstance(first, list) else [])[:num_items]]
        return sequence([*fixed, self._part(items, depth)] if num_items > len(fixed) else fixed)

    def _listed(self, schema: Mapping[str, Any], key: str, depth: int) -> list[Part]:
        branches = schema.get(key)
        return [self._part(each, depth + 1) for each in branches] if isinstance(branches, list) else []

    def _at(self, place: str) -> Any:
        """Return the schema at a place, such as `#/$defs/a`, `#anchor` or `id#/$defs/a`; True if there is none."""
        identifier, _, rest = place.partition(ROOT)
        found = self._named.get(identifier, True) if identifier else self._root
        if rest and not rest.startswith("/"):
            return self._named.get(f"{ROOT}{rest}", True)
        for part in rest.split("/")[1:]:
            key = unescaped(part)
            if isinstance(found, list):
                found = found[int(key)] if key.isdecimal() and len(key) < 9 and int(key) < len(found) else True
            else:
                found = found.get(key, True) if isinstance(found, dict) else True
        return found


def _named(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that have a name, with it: an identifier, or `#` and an anchor."""
    for schema in objects_in(root):
        for key, mark in (("$id", ""), ("id", ""), ("$anchor", ROOT)):
            if isinstance(name := schema.get(key), str):
                yield f"{mark}{name.removesuffix(ROOT)}", schema


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
