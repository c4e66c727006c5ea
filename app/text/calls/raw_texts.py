"""Terminals for strings that a call has as they are, between marks: Lark text that checks them as JSON would be.

A string's length, pattern, enum and const are checked, and the formats below; other formats are any text, as JSON
schema allows. Nothing is written that the parser could not read: no text contains the beginning of the mark behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from app.text.calls.tool_schemas import MAX_DEPTH, STRING, Parameters, Unwritable
from app.text.grammar.lark_text import containing, of_length, quoted, whole

_DAY = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
FORMATS = {
    "date": _DAY,
    "time": _CLOCK,
    "date-time": f"(?:{_DAY})T{_CLOCK}",
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(?:\.[A-Za-z0-9_+-]{{1,31}})?@{_LABEL}(?:\.{_LABEL}){{1,2}}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "uuid": "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
}


class RawTexts:
    """Terminals for the strings of one function. One owner.

    `excluded` is what no text may contain. `add` takes the lines of a grammar; the names in them begin with `prefix`.
    """

    def __init__(self, parameters: Parameters, prefix: str, excluded: str, add: Callable[[str], None]) -> None:
        self._parameters = parameters
        self._prefix = prefix
        self._excluded = excluded
        self._add = add
        self._names: dict[int, str | None] = {}  # by the schema
        self._open: set[int] = set()

    def terminal(self, schema: Any) -> str | None:
        """Return the name of the terminal of a schema that allows strings; None if it allows any.

        Raises:
            Unwritable: a part of the schema cannot be checked.
        """
        key = id(schema)
        if key in self._open or len(self._open) > MAX_DEPTH:
            raise self._unwritable("has a schema of strings that contains itself or is nested too deeply")
        if key not in self._names:
            self._open.add(key)
            parts = list(self._parts(schema)) if isinstance(schema, dict) else []
            self._open.remove(key)
            self._names[key] = f"{self._prefix}_{len(self._names)}" if parts else None
            if parts:
                self._add(f"{self._names[key]}: {' & '.join(parts)}")
        return self._names[key]

    def _parts(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield what a text must match, each of it."""
        for name in ("not", "if"):
            if name in schema:
                raise self._unwritable(f"has {name!r} in a schema of strings, which is not supported")
        if isinstance(path := schema.get("$ref"), str):
            if (target := self._parameters.at(path)) is None:
                raise self._unwritable(f"refers to {path[:100]!r}, which is not in it")
            yield from self._all_of([target])
        if isinstance(parts := schema.get("allOf"), list):
            yield from self._all_of(parts)
        for name in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(name), list):
                yield from self._any_of(branches)
        if "const" in schema or isinstance(schema.get("enum"), list):
            yield self._one_of([schema["const"]] if "const" in schema else schema["enum"])
        least, most = (schema.get(name) for name in ("minLength", "maxLength"))
        if least is not None or most is not None:
            yield self._length(least, most)
        if "pattern" in schema:
            if not isinstance(schema["pattern"], str):
                raise self._unwritable("has a pattern that is no text")
            yield containing(schema["pattern"])
        if isinstance(kind := schema.get("format"), str) and kind in FORMATS:
            yield whole(FORMATS[kind])

    def _all_of(self, parts: list[Any]) -> list[str]:
        return [name for part in parts if (name := self.terminal(part)) is not None]

    def _any_of(self, branches: list[Any]) -> list[str]:
        """Return one part at most: the branches that allow strings, unless one of them allows any."""
        types = [self._parameters.types(branch) for branch in branches]
        names = [self.terminal(one) for one, found in zip(branches, types, strict=True) if not found or found & STRING]
        if not names:
            raise self._unwritable("has a schema that no string satisfies")
        return [] if None in names else [f"({' | '.join(filter(None, names))})"]

    def _one_of(self, values: list[Any]) -> str:
        texts = [value for value in values if isinstance(value, str)]
        if not texts:
            raise self._unwritable("has a schema that no string satisfies")
        for text in texts:
            if self._excluded and self._excluded in text:
                raise self._unwritable(f"has the value {text[:100]!r}, which the calls of this model cannot write")
        return f"({' | '.join(map(quoted, texts))})"

    def _length(self, least: object, most: object) -> str:
        # In JSON schema 2.0 is an integer, and true is none.
        given = (0 if least is None else least, most)
        lower, upper = (int(each) if isinstance(each, float) and each.is_integer() else each for each in given)
        if type(lower) is int and lower >= 0 and (upper is None or (type(upper) is int and upper >= lower)):
            return of_length(lower, upper)
        raise self._unwritable(f"has minLength {least!r:.40} and maxLength {most!r:.40}, which no text satisfies")

    def _unwritable(self, reason: str) -> Unwritable:
        return Unwritable(self._parameters.function, reason)
