"""Marks in a text that comes in pieces, such as `<tool_call>`.

The engine writes U+FDD0 before a special token that a parser must see (`SHOWN`). A mark that is a special token of the
model is found only with this character, so that text that merely spells it stays text; any other mark is found as text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

SHOWN = "\ufdd0"  # a noncharacter: the detokenizer replaces one of the model's own


class Marks:
    """Finds any of several marks; no mark begins with another one. Any thread."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = tuple(mark for mark in dict.fromkeys(marks) if mark)
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or r"(?!)")
        self._firsts = frozenset(mark[0] for mark in self._marks)
        self._longest = max(map(len, self._marks), default=0)

    def find(self, text: str, start: int, stop: int | None = None) -> re.Match[str] | None:
        """Return the first mark at or after `start`, that ends at or before `stop` if one is given."""
        return self._pattern.search(text, start, len(text) if stop is None else stop)

    def num_held(self, text: str, start: int) -> int:
        """Return how many characters at the end of `text` may be the beginning of a mark."""
        for position in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[position] in self._firsts and any(mark.startswith(text[position:]) for mark in self._marks):
                return len(text) - position
        return 0


def as_shown(mark: str, special: Collection[str]) -> str:
    """Return a mark as it comes in an answer of a model with the special tokens `special`."""
    return SHOWN + mark if mark in special else mark
