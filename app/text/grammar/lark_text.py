"""Pieces of Lark as the grammar library reads it: texts, values of JSON, and regular expressions between slashes."""

from __future__ import annotations

import json
import re

ANYTHING = "(?s:.*)"
_SPECIAL = re.compile(r"([\\.^$*+?{}\[\]|()/])")
_ENDING = re.compile(r"\\?([/\n\r])|\\.")
_BRACKETS = re.compile(r"\\[\s\S]|\[\^?\]?|[\]()|]")
_ESCAPED = {"/": r"\/", "\n": r"\n", "\r": r"\r"}


def quoted(text: str) -> str:
    """Return the terminal of exactly `text`."""
    return as_json(text)


def as_json(value: object) -> str:
    """Return JSON to stand behind `%json`."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")  # the library reads no such character


def without(text: str) -> str:
    """Return a regular expression for all texts that do not contain `text`."""
    return f"~/{ANYTHING}{_literal(text)}{ANYTHING}/"


def without_pair(first: str, second: str) -> str:
    """Return a regular expression for all texts that do not contain two different characters, one behind the other.

    Together with others it costs the library far less than `without`.
    """
    one, other = _literal(first), _literal(second)
    return f"/(?:[^{one}]|{one}+[^{one}{other}])*{one}*/"


def several(rule: str, separator: str, is_parallel: bool) -> str:
    """Return a rule once or, with `is_parallel`, several times."""
    return f"{rule} ({separator} {rule})*" if is_parallel else rule


def whole(pattern: str) -> str:
    """Return a regular expression for exactly what `pattern` matches."""
    return f"/(?:{_between_slashes(pattern)})/"


def containing(pattern: str) -> str:
    """Return a regular expression for all texts in which `pattern` is found, as in JSON schema.

    Each alternative may begin with `^` and end with `$`; the library rejects anchors at other places, and the pattern
    where its brackets do not match.
    """
    body = _between_slashes(pattern)
    alternatives = _alternatives(body)
    return f"/{body}/" if alternatives is None else f"/{'|'.join(map(_found, alternatives))}/"


def of_length(least: int, most: int | None) -> str:
    """Return a regular expression for all texts with so many characters."""
    return f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _literal(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _between_slashes(pattern: str) -> str:
    """Return a pattern with the same meaning and nothing in it that would end a regular expression."""
    return _ENDING.sub(lambda match: _ESCAPED.get(match[1], match[0]), pattern)


def _found(alternative: str) -> str:
    body = alternative.removeprefix("^")
    num_backslashes = len(body) - 1 - len(body[:-1].rstrip("\\")) if body else 0
    has_end = body.endswith("$") and num_backslashes % 2 == 0
    before = "" if alternative.startswith("^") else ANYTHING
    return f"{before}(?:{body[:-1] if has_end else body}){'' if has_end else ANYTHING}"


def _alternatives(pattern: str) -> list[str] | None:
    """Return the alternatives between the outermost `|` of a pattern; None if its brackets do not match.

    Classes of characters may contain others. The first character of a class is no bracket, but for `[`.
    """
    found, begin = [], 0
    groups = classes = 0
    for match in _BRACKETS.finditer(pattern):
        char = match[0][0]
        if char == "[":
            classes += 1
        elif classes:
            classes -= char == "]"
        elif char == "(":
            groups += 1
        elif char == ")":
            groups -= 1
            if groups < 0:
                return None
        elif char == "|" and groups == 0:
            found.append(pattern[begin : match.start()])
            begin = match.end()
    return None if groups or classes else [*found, pattern[begin:]]
