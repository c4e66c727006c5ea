"""Finds the end of a JSON value in a text that comes in pieces, without parsing it: each character is read once."""

from __future__ import annotations

import re

from app.text.reading.marks import SHOWN

# `<` begins a mark: outside of strings JSON has none. A special token is never part of a value.
_IN_CONTAINER = re.compile(rf'["{{}}\[\]<{SHOWN}]')
_IN_STRING = re.compile(rf'["\\{SHOWN}]')
_AFTER_SCALAR = re.compile(rf"[\s,;\]}}<{SHOWN}]")


class JsonSpan:
    """The scanner of one value, which may be an object, a list, a string or a bare word.

    Attributes:
        is_complete: whether the end was found.
        is_broken: whether the text cannot be the rest of the value.
        is_word: whether the value is a number, true, false or null, which the end of the text completes.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "is_broken", "is_complete", "is_word")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        self.is_complete = self.is_broken = self.is_word = False

    def scan(self, text: str, start: int, stop: int | None = None) -> int:
        """Read on at `start`; return where the value ends, or breaks, or `stop`, by default the end of the text."""
        position, stop = start, len(text) if stop is None else stop
        while position < stop and not (self.is_complete or self.is_broken):
            if self.is_word:
                return self._scan_word(text, position, stop)
            scan = self._scan_string if self._is_in_string else self._scan_plain
            position = scan(text, position, stop)
        return position

    def _scan_word(self, text: str, position: int, stop: int) -> int:
        match = _AFTER_SCALAR.search(text, position, stop)
        self.is_complete = match is not None
        return stop if match is None else match.start()

    def _scan_string(self, text: str, position: int, stop: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return position + 1
        match = _IN_STRING.search(text, position, stop)
        if match is None:
            return stop
        if match[0] == SHOWN:
            self.is_broken = True
            return match.start()
        self._is_escaped = match[0] == "\\"
        self._is_in_string = self._is_escaped
        self.is_complete = not self._is_in_string and self._depth == 0
        return match.end()

    def _scan_plain(self, text: str, position: int, stop: int) -> int:
        if self._depth == 0:
            char = text[position]
            self._is_in_string = char == '"'
            self._depth = int(char in "{[")
            self.is_broken = char in f"}}],:;<{SHOWN}"
            self.is_word = not (self._is_in_string or self._depth or self.is_broken)
            return position + (not self.is_broken)
        match = _IN_CONTAINER.search(text, position, stop)
        if match is None:
            return stop
        char = match[0]
        self.is_broken = char in f"<{SHOWN}"
        self._is_in_string = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        self.is_complete = self._depth == 0
        return match.start() if self.is_broken else match.end()
