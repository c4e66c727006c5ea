"""Finds regular expressions that take more than linear time: every repeat in a pattern gets long texts.

A text begins with what leads to the repeat, goes on with samples of what it repeats, or with that beginning, again and
again, and ends with what does not belong there. A pattern is not linear if a text of twice the length takes `RATIO`
times as long: 2 is linear, 4 is quadratic. The time is the thread's own, so that other processes do not count, and what
looks slow is measured again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

RATIO = 2.8
LEAST_S = 1.5e-3  # less is no danger, and cannot be measured well
TRIES = 7
# The first steps are short, because an exponential cost may be small at one length and hours at twice the length.
LENGTHS = (*(round(16 * 2 ** (step / 2)) for step in range(9)), 512, 1024, 2048, 4096)
MIN_REPEATS = 64  # a repeat of fewer times costs little
NUM_SAMPLES = 6
ENDS = ("", "\0", "a\n")
USUAL = "a0 .\n"
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_CHARS = (_constants.IN, _constants.ANY, _constants.NOT_LITERAL)
_NO_TEXT = (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT, _constants.GROUPREF, _constants.FAILURE)
Pattern = re.Pattern[str] | re.Pattern[bytes]


class Slow(NamedTuple):
    """A text that takes more than linear time: `start`, then `unit` again and again, then `end`."""

    start: str
    unit: str
    end: str
    ratio: float
    ms: float


def slow_text(pattern: Pattern, method: str) -> Slow | None:
    """Return a text for which a method of a pattern is not linear; None if none was found."""
    call = _caller(pattern, method)
    for start, unit, end in _Texts(pattern).cases():
        growth = _growth(call, partial(_text, isinstance(pattern.pattern, bytes), start, unit, end))
        if growth is not None:
            return Slow(start, unit, end, *growth)
    return None


def num_cases(pattern: Pattern) -> int:
    """Return how many kinds of texts `slow_text` tries."""
    return len(_Texts(pattern).cases())


def _growth(call: Callable[[Any], object], text_of: Callable[[int], Any]) -> tuple[float, float] | None:
    """Return how much more a text of twice the length costs, and its milliseconds; None if that is little."""
    for length in LENGTHS:
        if _seconds(call, text_of(length), 1) < LEAST_S:
            continue
        took, before = (_seconds(call, text_of(each), TRIES) for each in (length, length // 2))
        if took >= LEAST_S and took >= RATIO * before:
            return took / before, took * 1000
    return None


def _seconds(call: Callable[[Any], object], text: Any, tries: int) -> float:
    best = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        call(text)
        best = min(best, time.thread_time() - began)
    return best


def _caller(pattern: Any, method: str) -> Callable[[Any], object]:
    if method == "sub":
        return partial(pattern.sub, b"" if isinstance(pattern.pattern, bytes) else "")
    if method == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    call: Callable[[Any], object] = getattr(pattern, method)
    return call


def _text(is_bytes: bool, start: str, unit: str, end: str, length: int) -> Any:
    text = start + unit * (length // len(unit)) + end
    return text.encode("latin-1", "replace") if is_bytes else text


class _Texts:
    """The texts for one pattern."""

    def __init__(self, pattern: Pattern) -> None:
        self._flags = pattern.flags
        self._tree = _parser.parse(pattern.pattern, pattern.flags)
        literals = "".join(_literals(self._tree))
        self._alphabet = "".join(dict.fromkeys(literals + USUAL))

    def cases(self) -> list[tuple[str, str, str]]:
        """Return beginning, unit and end of each kind of text."""
        parts: list[tuple[str, str]] = []
        for start, body in self._repeats(self._tree, ""):
            samples = [sample for sample in self._samples(body) if sample]
            pairs = ["".join(pair) for pair in permutations(samples[:3], 2)]
            units = [*samples, *pairs, *(start + sample for sample in samples)]
            parts += [(start, unit) for unit in [*units, start] if unit]
            parts += [(start + first, unit) for first in samples for unit in samples]
        return [(start, unit, end) for start, unit in dict.fromkeys(parts) for end in ENDS]

    def _repeats(self, items: Any, start: str) -> Iterator[tuple[str, Any]]:
        """Yield what leads to each long repeat of a sequence, and what is repeated."""
        for op, value in items:
            if op in _REPEATS:
                _, most, body = value
                if most >= MIN_REPEATS:
                    yield start, body
                yield from self._repeats(body, start)
            else:
                for inner in _inner(op, value):
                    yield from self._repeats(inner, start)
            start += self._shortest([(op, value)])

    def _shortest(self, items: Any) -> str:
        """Return a short text that a sequence matches."""
        return "".join(
            self._shortest(value[2]) * value[0] if op in _REPEATS else min(self._samples([(op, value)]), key=len)
            for op, value in items
        )

    def _samples(self, items: Any) -> list[str]:
        """Return some texts that a sequence matches, at least one."""
        texts = [""]
        for item in items:
            of_item = self._samples_of(*item)
            num = max(len(texts), len(of_item))
            texts = [texts[index % len(texts)] + of_item[index % len(of_item)] for index in range(num)]
        return list(dict.fromkeys(texts))[:NUM_SAMPLES]

    def _samples_of(self, op: Any, value: Any) -> list[str]:
        if op is _constants.LITERAL:
            return [chr(value)]
        if op in _CHARS:
            char = _compiler.compile(_parser.SubPattern(self._tree.state, [(op, value)]), self._flags)
            usual, others = (filter(char.fullmatch, chars) for chars in (self._alphabet, map(chr, range(0x10000))))
            return [*usual] or [next(others)]
        if op in _REPEATS:
            return [sample * max(1, value[0]) for sample in self._samples(value[2])]
        if op in _NO_TEXT:
            return [""]
        by_inner = [self._samples(inner) for inner in _inner(op, value)]
        longest = max(map(len, by_inner))
        return [samples[index] for index in range(longest) for samples in by_inner if index < len(samples)]


def _inner(op: Any, value: Any) -> list[Any]:
    """Return the sequences in a part of a pattern that is no repeat."""
    if op is _constants.BRANCH:
        return list(value[1])
    if op is _constants.SUBPATTERN:
        return [value[-1]]
    if op is _constants.ATOMIC_GROUP:
        return [value]
    if op in (_constants.ASSERT, _constants.ASSERT_NOT):
        return [value[1]]
    assert op is _constants.LITERAL or op in _CHARS or op in _NO_TEXT, f"{op} is not known here"
    return []


def _literals(items: Any) -> Iterator[str]:
    """Yield the characters that a pattern names."""
    for op, value in items:
        if op in (_constants.LITERAL, _constants.NOT_LITERAL):
            yield chr(value)
        elif op is _constants.IN:
            yield from (
                chr(one) if kind is _constants.LITERAL else chr(one[0])
                for kind, one in value
                if kind in (_constants.LITERAL, _constants.RANGE)
            )
        elif op in _REPEATS:
            yield from _literals(value[2])
        else:
            for inner in _inner(op, value):
                yield from _literals(inner)
