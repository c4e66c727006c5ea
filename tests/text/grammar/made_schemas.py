"""Random JSON schemas of the kinds that clients send.

What satisfies a bounded one is short, but for those that refer to themselves. Others have values that may go on for
ever: digits behind a point, addresses, names of further properties.
"""

from __future__ import annotations

import random
from typing import Any

MAX_DEPTH = 4


class _Random(random.Random):
    """A source of random numbers that knows whether values must be bounded."""

    is_bounded = True


PATTERNS = ["^[a-z]{1,5}$", "^[A-Z][a-z]{0,4}$", "^\\d{2}-\\d{2}$", "^(ab|cd)*e$"]
FORMATS = ["date", "uuid", "ipv4", "email"]  # the last one has no bound


def make_schema(seed: int, *, is_bounded: bool = True) -> dict[str, Any]:
    """A schema whose root is an object, an array or a union; some refer to definitions, some to themselves."""
    rng = _Random(seed)
    rng.is_bounded = is_bounded
    schema = _object(rng, 0) if rng.random() < 0.6 else _any(rng, 0)
    kind = rng.randrange(5)
    if kind == 0:
        schema = {
            "type": "object",
            "properties": {"one": {"$ref": "#/$defs/part"}, "two": {"$ref": "#/$defs/part"}},
            "required": ["one"],
            "additionalProperties": False,
            "$defs": {"part": schema},
        }
    elif kind == 1:
        schema = {
            "type": "object",
            "properties": {"value": schema, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    return schema


def _any(rng: _Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _number, _fixed, _simple]
    if depth < MAX_DEPTH:
        kinds += [_object, _array, _union]
    return rng.choice(kinds)(rng, depth)


def _string(rng: _Random, depth: int) -> dict[str, Any]:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(FORMATS[:-1] if rng.is_bounded else FORMATS)}
    least = rng.randrange(4)
    return {"type": "string", "minLength": least, "maxLength": rng.randint(least, 20)}


def _number(rng: _Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(-50, 50)
    kind = "integer" if rng.is_bounded else rng.choice(["integer", "number"])
    return {"type": kind, "minimum": least, "maximum": least + rng.randrange(200)}


def _fixed(rng: _Random, depth: int) -> dict[str, Any]:
    values = [rng.choice(["red", "é", 'quo"te', "a b", 3, -1.5, True, None]) for _ in range(3)]
    return {"const": values[0]} if rng.random() < 0.3 else {"enum": values}


def _simple(rng: _Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def _object(rng: _Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["a", "b", "name", "count", "öl", "with space"], rng.randint(1, 4))
    schema: dict[str, Any] = {"type": "object", "properties": {name: _any(rng, depth + 1) for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    schema["additionalProperties"] = (
        False if rng.is_bounded or rng.random() < 0.6 else {"type": "integer", "minimum": 0, "maximum": 9}
    )
    return schema


def _array(rng: _Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    return {
        "type": "array",
        "items": _any(rng, depth + 1),
        "minItems": least,
        "maxItems": rng.randint(least, 4),
    }


def _union(rng: _Random, depth: int) -> dict[str, Any]:
    return {rng.choice(["anyOf", "oneOf"]): [_any(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
