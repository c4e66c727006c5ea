"""Limits of one rendering of a chat template: steps, processed characters, and sizes of values.

Sizes of new values and costs of calls are checked before the value is made or the function is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

MAX_RANGE = 10_000  # numbers of a range(), and the largest width, count or precision
MAX_STEPS = 2**20
MAX_ITEMS = 2**18
MAX_BITS = 4096
MAX_FLOAT_DIGITS = 310
# A template may repeat its input (for example, system prompts), up to this factor.
MAX_EXPANSION = 4
MAX_EXTRA_CHARS = 2**20
WORK_PER_CHAR = 512
MAX_EXTRA_WORK = 2**24
_WIDE = re.compile(r"\*|\d{5}|\{[^{}:]*+:[^{}]*+\{")  # in a format string: a width from an argument, or a large one
_NUMBER = re.compile(r"\d+")
_HOLDERS: tuple[type[Any], ...] = (list, tuple, dict, set, range, type({}.keys()), type({}.values()), type({}.items()))
_ATTRIBUTES = "_Namespace__attrs"  # of a Namespace, whose other attributes are the template's
# Calls that may compare every character of one text with every character of the other.
_PAIRING_CALLS = {"trim", "strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition"}


class TemplateTooCostly(TemplateError):
    """A template exceeds a limit."""


class Allowance:
    """The remaining steps and characters of one rendering. One thread."""

    __slots__ = ("max_chars", "num_chars", "num_steps")

    def __init__(self, num_given: int) -> None:
        """Begin a rendering whose input has `num_given` characters."""
        self.max_chars = MAX_EXTRA_CHARS + MAX_EXPANSION * num_given
        self.num_chars = MAX_EXTRA_WORK + WORK_PER_CHAR * num_given
        self.num_steps = MAX_STEPS

    def count_step(self) -> None:
        """Count one step."""
        self.num_steps -= 1
        if self.num_steps < 0:
            raise TemplateTooCostly(f"it takes more than {MAX_STEPS} steps")

    def count_chars(self, size: int) -> None:
        """Count `size` characters of an existing string, or of one that is about to be made."""
        if size > self.max_chars:
            raise TemplateTooCostly(f"it makes a text of more than {self.max_chars} characters")
        self.count_work(size)

    def count_work(self, num_chars: int) -> None:
        """Count `num_chars` processed characters."""
        self.num_chars -= num_chars
        if self.num_chars < 0:
            raise TemplateTooCostly("it processes the messages too often")

    def count_value(self, value: object, *, is_deep: bool = False) -> None:
        """Count a value, with `is_deep` including all values in it."""
        self.count_step()
        if isinstance(value, (str, bytes)):
            self.count_chars(len(value))
        elif isinstance(value, _HOLDERS):
            if len(value) > MAX_ITEMS:
                raise TemplateTooCostly(f"it makes a list of more than {MAX_ITEMS} items")
            self.count_chars(len(value))
            for item in (value.items() if isinstance(value, dict) else value) if is_deep else ():
                self.count_value(item, is_deep=True)
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise TemplateTooCostly(f"it computes with numbers of more than {MAX_BITS} bits")
            self.count_chars(value.bit_length() // 3)  # digits
        elif isinstance(value, float):
            self.count_chars(MAX_FLOAT_DIGITS)
        elif is_deep and isinstance(value, Namespace):
            self.count_value(object.__getattribute__(value, _ATTRIBUTES), is_deep=True)

    def check_call(self, name: str, subject: object, args: Sequence[Any], *, is_deep: bool = False) -> None:
        """Reject a call of a filter or method of `subject` that would take too long or make something too large.

        With `is_deep` the call processes all values in subject and arguments.
        """
        if name != "format" and any(isinstance(value, int) and abs(value) > MAX_RANGE for value in args):
            raise TemplateTooCostly(f"{name} with a number above {MAX_RANGE}")
        self.count_value(subject, is_deep=is_deep)
        for value in args if is_deep else ():
            self.count_value(value, is_deep=True)
        if name == "sum" and any(isinstance(value, _HOLDERS) for value in args):
            raise TemplateTooCostly("it sums lists")
        if not isinstance(subject, str):
            return
        if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
            self.count_chars(len(subject) + (subject.count(args[0]) if args[0] else len(subject) + 1) * len(args[1]))
        elif name == "indent":
            width = args[0] if args else 4
            self.count_chars((subject.count("\n") + 1) * (width if isinstance(width, int) else len(str(width))))
        elif name in ("format", "format_map"):
            self.check_format(subject, args)
        elif name in _PAIRING_CALLS:
            self.count_work(len(subject) * max((len(value) for value in args if isinstance(value, str)), default=1))

    def check_format(self, pattern: str, values: Sequence[Any]) -> None:
        """Reject to format `values` with `pattern` if the result would be too large."""
        if _WIDE.search(pattern):
            raise TemplateTooCostly("it formats with a large width")
        num_fields = pattern.count("{") + pattern.count("%")
        width = max(map(int, _NUMBER.findall(pattern)), default=0)
        self.count_chars(len(pattern) + num_fields * (width + max(map(self._measure, values), default=0)))

    def _measure(self, value: object) -> int:
        """Return the number of characters of a value."""
        num_chars = self.num_chars
        self.count_value(value, is_deep=True)
        return num_chars - self.num_chars


_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def new_allowance(num_given: int) -> Iterator[None]:
    """Render within the block with a new allowance for `num_given` characters."""
    token = _allowance.set(Allowance(num_given))
    try:
        yield
    finally:
        _allowance.reset(token)


def current_allowance() -> Allowance:
    """Return the allowance of the current rendering."""
    return _allowance.get() or Allowance(0)  # none: jinja2 evaluates constants when it compiles
