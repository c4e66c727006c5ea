"""Reads literals of Python that come in pieces, and gives them as JSON: strings, numbers, lists, dicts and constants.

Nothing is evaluated. A template may write a string without escaping the quotes in it (`'it's'`), and models learn this:
so a quote ends a string only if what may follow a literal comes behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from app.text.reading.marks import SHOWN, Marks
from app.text.reading.reader import Reader, Reading

MAX_DEPTH = 64
MAX_WORD = 256
MAX_CODE = 0x10FFFF

Add = Callable[[str], None]
_QUOTES = "'\""
_AFTER_LITERAL = f",)]}}:{SHOWN}"
_ENDS = {quote: Marks((quote, "\\", SHOWN)) for one in _QUOTES for quote in (one, one * 3)}
# JSON writes the constants in small letters, and templates write JSON for dicts.
_CONSTANTS = {"True": "true", "False": "false", "None": "null"} | {word: word for word in ("true", "false", "null")}
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_NUMBER = re.compile(r"([+-]?)(?=\.?[0-9])([0-9_]*)(?:(\.)([0-9_]*))?([eE][+-]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""} | {
    char: char for char in "\\'\"/"
}
_DIGITS = re.compile("[0-9a-fA-F]+")
_OCTAL_DIGITS = re.compile("[0-7]+")
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}


def pass_literal(reader: Reader, add: Add, depth: int = 0) -> Reading[bool]:
    """Consume a literal and give `add` its JSON in pieces; return whether it is complete.

    `depth` is the number of lists and dicts around it. No text must be kept.
    """
    char = yield from reader.peek()
    if char and char in _QUOTES:
        return (yield from _pass_string(reader, add, char))
    if char == "[":
        return depth < MAX_DEPTH and (yield from _pass_items(reader, add, "[]", depth + 1))
    if char == "{":
        return depth < MAX_DEPTH and (yield from _pass_items(reader, add, "{}", depth + 1))
    return (yield from _pass_word(reader, add))


def json_string(text: str) -> str:
    """Return a text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _pass_items(reader: Reader, add: Add, brackets: str, depth: int) -> Reading[bool]:
    """Consume a list or a dict."""
    yield from reader.accept(brackets[0])
    yield from reader.skip()
    add(brackets[0])
    separator, has_comma = "", True
    while not (yield from reader.accept(brackets[1])):
        if not has_comma:
            return False
        add(separator)
        if brackets == "{}" and not (yield from _pass_key(reader, add)):
            return False
        if not (yield from pass_literal(reader, add, depth)):
            return False
        yield from reader.skip()
        has_comma, separator = (yield from reader.accept(",")), ", "
        yield from reader.skip()
    add(brackets[1])
    return True


def _pass_key(reader: Reader, add: Add) -> Reading[bool]:
    """Consume the key of an item, which must be a string, and the colon."""
    quote = yield from reader.peek()
    if not quote or quote not in _QUOTES or not (yield from _pass_string(reader, add, quote)):
        return False
    yield from reader.skip()
    has_colon = yield from reader.accept(":")
    yield from reader.skip()
    add(": " if has_colon else "")
    return has_colon


def _pass_word(reader: Reader, add: Add) -> Reading[bool]:
    """Consume a number or a constant. It is complete when something follows."""
    reader.keep()
    word = yield from reader.read_run(_WORD, MAX_WORD)
    value = _CONSTANTS.get(word) or _number(word)
    if not value or len(word) == MAX_WORD or not (yield from reader.peek()):
        reader.rewind()
        return False
    reader.drop()
    add(value)
    return True


def _number(word: str) -> str:
    """Return a number as JSON, which has no underscores, no leading zeros, and digits on both sides of a point."""
    match = _NUMBER.fullmatch(word)
    if match is None:
        return ""
    sign, whole, point, fraction, exponent = (part or "" for part in match.groups())
    whole, fraction = whole.replace("_", "").lstrip("0") or "0", fraction.replace("_", "") or "0"
    return f"{sign.strip('+')}{whole}{point and '.' + fraction}{exponent}"


def _pass_string(reader: Reader, add: Add, quote: str) -> Reading[bool]:
    if (yield from reader.accept(quote * 3)):
        quote *= 3
    else:
        yield from reader.accept(quote)
    add('"')
    while True:
        mark = yield from reader.pass_until(_ENDS[quote], lambda text: add(json_string(text)[1:-1]), keeps_blanks=False)
        if mark == "\\":
            piece = yield from _read_escape(reader)
            reader.drop()
        elif mark != quote:  # the end of the answer, or a special token
            reader.rewind()
            return False
        else:
            behind = yield from reader.skip()
            reader.rewind()
            yield from reader.accept(quote)
            if not behind:
                return False
            if behind in _AFTER_LITERAL or len(quote) == 3:
                add('"')
                return True
            piece = json_string(quote)[1:-1]
        add(piece)


def _read_escape(reader: Reader) -> Reading[str]:
    """Read the rest of an escape; return its JSON. Of an unknown one only the backslash is read, which is text then."""
    char = yield from reader.peek()
    if char in _ESCAPES:
        yield from reader.accept(char)
        return json_string(_ESCAPES[char])[1:-1]
    digits, num_digits, base = (yield from reader.read_run(_OCTAL_DIGITS, 3)), 1, 8
    if not digits and char in _NUM_DIGITS:
        yield from reader.accept(char)
        num_digits, base = _NUM_DIGITS[char], 16
        digits = yield from reader.read_run(_DIGITS, num_digits)
    if not (yield from reader.peek()):
        return ""  # the answer ends in it
    if len(digits) >= num_digits and (code := int(digits, base)) <= MAX_CODE:
        return json.dumps(chr(code))[1:-1]  # in ASCII: then halves of a pair are JSON, too
    return rf"\\{char if base == 16 else ''}{digits}"
