"""The marks around calls, and which of them are those of one model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from app.text.reading.marks import as_shown


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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: _shown(value, special) for name, value in values.items()})

    def narrowed(self, source: str) -> Self:
        """Return those of the opening marks that a template's source has, if it has any, and their closing ones."""
        opens = tuple(mark for mark in self.opens if mark in source) or self.opens
        others = set(map(closing, self.opens)) - set(map(closing, opens))
        return replace(self, opens=opens, closes=tuple(mark for mark in self.closes if mark not in others))


def closing(mark: str) -> str:
    """Return the mark that closes what `mark` opens, as tags do."""
    return mark.replace("<", "</", 1)


def _shown(value: Any, special: Collection[str]) -> Any:
    """Return the marks in a field as they come in answers, and any other value as it is."""
    if isinstance(value, str):
        return as_shown(value, special)
    return tuple(as_shown(mark, special) for mark in value) if isinstance(value, tuple) else value
