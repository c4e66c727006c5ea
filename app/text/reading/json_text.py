"""JSON that clients put into texts, such as the arguments of a call, and the limits of what Python's parser reads.

That parser keeps the interpreter's lock until it is done, and its time for an integer is quadratic in the digits.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

MAX_DIGITS = 64
MAX_VALUES = 2**16  # of any kind: about 20 ms


class JsonTooLarge(ValueError):
    """JSON exceeds a limit; the message says what it has and what is allowed, behind the name of a field."""


class JsonCounts(NamedTuple):
    """How much is in some JSON: `num_parts` objects, lists and strings (keys too), keys, and values of any kind."""

    num_parts: int
    num_keys: int = 0
    num_values: int = 0


def count_json(source: bytes, max_parts: int) -> JsonCounts:
    """Count without parsing; with more than `max_parts` parts nothing else is counted. Any thread.

    For invalid JSON the counts are at least those of the part before the first error.
    """
    plain = source.replace(rb"\\", b"").replace(rb"\"", b"")  # every quotation mark left begins or ends a string
    num_parts = plain.count(b'"') // 2
    if num_parts > max_parts:
        return JsonCounts(num_parts)
    outside = b"".join(plain.split(b'"')[::2])
    num_parts += outside.count(b"[") + outside.count(b"{")
    return JsonCounts(num_parts, outside.count(b":"), num_parts + outside.count(b","))


def parse_json(text: str) -> Any:
    """Parse JSON within the limits above, without the words that are not JSON (`NaN`, `Infinity`). Any thread.

    Raises:
        JsonTooLarge: it exceeds a limit.
        ValueError, RecursionError: it is not JSON, or nested too deeply.
    """
    counts = count_json(text.encode(errors="surrogatepass"), MAX_VALUES)
    if (num_values := max(counts.num_parts, counts.num_values)) > MAX_VALUES:
        raise JsonTooLarge(f"has about {num_values} values; at most {MAX_VALUES} are allowed")
    return json.loads(text, parse_int=_integer, parse_constant=_refuse)


def _integer(digits: str) -> int:
    if (num_digits := len(digits.removeprefix("-"))) > MAX_DIGITS:
        raise JsonTooLarge(f"has an integer of {num_digits} digits; at most {MAX_DIGITS} are allowed")
    return int(digits)


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is not JSON")
