"""Drives a machine: text goes in piece by piece, events come out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

from app.text.reading.answer_events import Event
from app.text.reading.reader import Reader, Reading

Machine: TypeAlias = Callable[[Reader], Reading[None]]
"""Reads one answer to its end; events go to `reader.events`."""


class Parser:
    """One machine at work on one answer. One owner; it does no I/O."""

    def __init__(self, machine: Machine) -> None:
        self._reader = Reader()
        self._reading: Generator[None, None, None] = machine(self._reader)
        self._go_on()

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of the answer; return what it completes."""
        self._reader.feed(text)
        return self._go_on()

    def finish(self) -> list[Event]:
        """Take the end of the answer; return the rest. `feed` must not be called afterwards."""
        self._reader.end()
        return self._go_on()

    def _go_on(self) -> list[Event]:
        next(self._reading, None)
        events, self._reader.events = self._reader.events, []
        return events
