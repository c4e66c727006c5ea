"""The marks around calls, and which of them are those of one model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Self

from app.text.reading.markers import as_shown


@dataclass(frozen=True, kw_only=True)
class CallMarks:
    """The marks of a family: every text in these fields and in those of a subclass is one.

    Attributes:
        opens: what may begin calls; a grammar writes the first.
        closes: what may follow a call.
        name_open: what stands before the name of each call, behind what opens the calls or in its place.
        is_bare: whether an answer may also begin with calls without a mark; their names must then be those of tools.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    name_open: str = ""
    is_bare: bool = False

    @property
    def begins(self) -> tuple[str, ...]:
        """The marks at which a parser looks for a call."""
        return (*self.opens, self.name_open) if self.name_open else self.opens

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        values = [getattr(self, field.name) for field in fields(self)]
        texts = (value for value in values if isinstance(value, str) and value)
        listed = (mark for value in values if isinstance(value, tuple) for mark in value)
        return tuple(dict.fromkeys((*listed, *texts)))

    def resolved(self, special: Collection[str]) -> Self:
        """Return the marks of a model with the special tokens `special`."""
        shown, changed = partial(as_shown, special=special), {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                changed[field.name] = shown(value)
            elif isinstance(value, tuple):
                changed[field.name] = tuple(map(shown, value))
        return replace(self, **changed)

    def narrowed(self, source: str) -> Self:
        """Return those of the opening marks that a template's source has, if it has any, and their closing ones."""
        opens = tuple(mark for mark in self.opens if mark in source) or self.opens
        others = set(map(closing, self.opens)) - set(map(closing, opens))
        return replace(self, opens=opens, closes=tuple(mark for mark in self.closes if mark not in others))


def closing(mark: str) -> str:
    """Return the mark that closes what `mark` opens, as tags do."""
    return mark.replace("<", "</", 1)
