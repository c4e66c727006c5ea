"""Rejects clients' grammars of which one part must satisfy several others at once, because their cost has no limit.

To learn whether an intersection is empty the grammar library multiplies the states of its parts in one call: with 20
patterns for one text a mask takes seconds and gigabytes, though compiling takes a millisecond. A `multipleOf` has as
many states as its number. None of the library's limits ends such a call, so what may be combined is counted before.

This fence knows the cases that are known. It is needed only while masks are made in the server's process, and only for
clients: `LLM` does not call it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any
from urllib.parse import unquote

import orjson

from app.contract.errors import InvalidValue
from app.contract.grammar import Grammar, GrammarKind

MAX_AT_ONCE = 2
MAX_MULTIPLES = 10_000
MAX_INTERSECTIONS, MAX_COMPLEMENTS = 1, 2
# Two of them multiply their numbers, so one is all that a text may have to satisfy.
_WEIGHTS = {"pattern": 1, "format": 1, "multipleOf": 2}
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_ITEMS = ("items", "prefixItems", "additionalProperties", "additionalItems")
# Texts, comments and regular expressions of Lark; what begins a schema; a complement, not a count of repetitions.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//.*|#.*|/(?:\\[\s\S]|[^/\\])*+/?|(?P<json>%json\s*+)|&|~(?!\s*+\d)')


def check_grammar(grammar: Grammar) -> None:
    """Reject a grammar that a client has sent if it combines too much. Any thread.

    Raises:
        InvalidValue: it does; the message says what was counted; `param` is not set.
    """
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        check_schema(orjson.loads(grammar.source))
    elif grammar.kind is GrammarKind.LARK:
        _check_lark(grammar.source)


def check_schema(schema: Any) -> None:
    """Reject a JSON schema that combines too much: see `check_grammar`. Linear in the size of the schema."""
    if not isinstance(schema, dict):
        return
    loads = _Loads(schema)
    if (at_once := loads.most_at_once()) > MAX_AT_ONCE:
        raise InvalidValue(
            f"One text must satisfy {at_once} or more of `pattern`, `format` and `multipleOf` at once, where "
            f"`multipleOf` counts twice; at most {MAX_AT_ONCE} are allowed. Use fewer of them within `allOf` and "
            "behind `$ref`."
        )
    if loads.sum_of_multiples > MAX_MULTIPLES:
        raise InvalidValue(
            f"The numbers of `multipleOf`, without their decimal points, add up to {loads.sum_of_multiples:.12g}; they "
            f"may add up to {MAX_MULTIPLES}."
        )


def _check_lark(source: str) -> None:
    counts = {"&": 0, "~": 0}
    position = 0
    while (match := _PARTS.search(source, position)) is not None:
        position = match.end()
        if match["json"] is not None:
            try:
                schema, position = json.JSONDecoder().raw_decode(source, position)
            except (ValueError, RecursionError) as error:
                raise InvalidValue(f"The grammar has a `%json` without JSON behind it: {error}.") from None
            check_schema(schema)
        elif match[0] in counts:
            counts[match[0]] += 1
    for sign, most in (("&", MAX_INTERSECTIONS), ("~", MAX_COMPLEMENTS)):
        if counts[sign] > most:
            raise InvalidValue(f"The grammar has {counts[sign]} times `{sign}`; it may have {most}.")


class _Loads:
    """How much each part of a schema asks of one text, `MAX_AT_ONCE` + 1 at most: the smallest numbers that agree.

    A part asks for what stands in it, and for what its `allOf`, `$ref`, `anyOf` and `oneOf` ask for. What it asks of
    its properties and items counts like its own, because combined parts also combine these. A number rises only where
    one below it has risen, and so at most three times: a part that contains itself in its properties costs no more.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.sum_of_multiples = Decimal(0)
        self._root = root
        self._of_group: defaultdict[tuple[int, object], int] = defaultdict(int)
        self._of_part: defaultdict[int, int] = defaultdict(int)
        self._above: defaultdict[int, list[tuple[int, object]]] = defaultdict(list)  # the groups that a part is in
        self._seen: dict[int, Mapping[str, Any]] = {}
        self._has_ref = self._has_id = False
        waiting = [root]
        while waiting:
            waiting += self._enter(waiting.pop())
        if self._has_ref and self._has_id:
            raise InvalidValue("The schema has an `$id` below its root and a `$ref`; leave out the `$id`.")

    def most_at_once(self) -> int:
        """Return how many of the counted keywords one text must satisfy at once."""
        changed = []
        for key, part in self._seen.items():
            if own := sum(weight for name, weight in _WEIGHTS.items() if name in part):
                self._raise(key, "own", own)
                changed.append(key)
        while changed:
            key = changed.pop()
            for above, group in self._above[key]:
                if self._raise(above, group, self._of_part[key]):
                    changed.append(above)
        return max(self._of_part.values(), default=0)

    def _raise(self, key: int, group: object, load: int) -> bool:
        """Raise a group of a part to at least `load`; return whether the part has risen."""
        before = self._of_part[key]
        if load > self._of_group[key, group]:
            self._of_part[key] = min(before + load - self._of_group[key, group], MAX_AT_ONCE + 1)
            self._of_group[key, group] = load
        return self._of_part[key] > before

    def _enter(self, part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Note a part; return those in it and behind its reference."""
        if id(part) in self._seen:
            return []
        self._seen[id(part)] = part
        self._has_id |= part is not self._root and isinstance(part.get("$id"), str)
        self.sum_of_multiples += _size(part.get("multipleOf"))
        inner: list[Mapping[str, Any]] = []
        for group, child in self._inner(part):
            if isinstance(child, dict):
                self._above[id(child)].append((id(part), group))
                inner.append(child)
        return inner

    def _inner(self, part: Mapping[str, Any]) -> Iterator[tuple[object, Any]]:
        """Yield the parts of a part with their groups: what one text satisfies of a group is one of them."""
        for name in _NAMED:
            named = part.get(name)
            yield from (("own", child) for child in (named.values() if isinstance(named, dict) else ()))
        for name in _ITEMS:
            yield from (("own", child) for child in _listed(part.get(name)))
        for name in ("anyOf", "oneOf"):
            yield from ((name, child) for child in _listed(part.get(name)))
        yield from enumerate(_listed(part.get("allOf")))
        if isinstance(reference := part.get("$ref"), str):
            self._has_ref = True
            yield "$ref", self._target(reference)

    def _target(self, reference: str) -> Any:
        """Return what a reference leads to; None if it is nothing, which the library rejects."""
        base, _, path = reference.partition("#")
        if (base and base != self._root.get("$id")) or path[:1] not in ("", "/"):
            raise InvalidValue(f"The `$ref` {reference[:100]!r} is no path in the schema, such as `#/$defs/name`.")
        found: Any = self._root
        for name in unquote(path).split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(key)] if key.isdecimal() and len(key) < 6 and int(key) < len(found) else None
            else:
                found = found.get(key) if isinstance(found, dict) else None
            self._has_id |= isinstance(found, dict) and found is not self._root and isinstance(found.get("$id"), str)
        return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _size(multiple: Any) -> Decimal:
    """Return the states that a `multipleOf` takes at least: its digits without the decimal point."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not isfinite(multiple):
        return Decimal(0)
    number = Decimal(str(multiple)).normalize()
    return abs(number.scaleb(max(0, -int(number.as_tuple().exponent))))
