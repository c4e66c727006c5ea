"""What the parsers find in an answer: text, reasoning, and calls of tools with their arguments."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """A piece of the answer itself."""

    text: str


class Reasoning(NamedTuple):
    """A piece of the model's reasoning."""

    text: str


class CallBegin(NamedTuple):
    """A call begins: its number in the answer, from 0, and the name of the tool."""

    call: int
    name: str


class Arguments(NamedTuple):
    """A piece of a call's arguments, which are JSON if the model has made no mistake."""

    call: int
    text: str


class CallEnd(NamedTuple):
    """The arguments of a call are complete; a call that breaks off has no such event."""

    call: int


Event = Text | Reasoning | CallBegin | Arguments | CallEnd
