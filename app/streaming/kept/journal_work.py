"""The work of one commit of the journal: what it writes, and what streams take when it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contract.events import TokenDelta
from app.journal.entries import Head, Told
from app.journal.store import Changes
from app.streaming.kept.live_stream import Ending, LiveStream, State
from app.streaming.kept.told_entries import add_ending, delta_entry, whole


class Recorded(NamedTuple):
    """A stream that is recorded, and how it was asked for."""

    stream: LiveStream
    head: Head


@dataclass(slots=True)
class JournalWork:
    """All that has come since the last commit, by the numbers of the streams.

    Attributes:
        deltas: new tokens, in the order of their coming: number, stream, choice, delta.
        endings: the ends of choices and streams: number, stream, ending. The tokens came before them.
        begun: new streams; with `is_whole` all of them.
        forgotten: streams that are not kept any longer: they take what they tell, but it is not written.
        attempts: how often streams were begun again that have told nothing since.
        is_whole: whether the journal is written anew.
        done: set when all is written, and told; None while nobody waits for that.
    """

    deltas: list[tuple[int, LiveStream, int, TokenDelta]] = field(default_factory=list)
    endings: list[tuple[int, LiveStream, Ending]] = field(default_factory=list)
    begun: dict[int, Recorded] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    is_whole: bool = False
    done: asyncio.Event | None = None

    def __bool__(self) -> bool:
        return bool(self.deltas) or self._has_more

    @property
    def _has_more(self) -> bool:
        """Whether there is more than new tokens."""
        return bool(self.endings or self.begun or self.forgotten or self.attempts or self.is_whole)

    def changes(self, held: Mapping[int, LiveStream]) -> Changes:
        """Return the changes to write: all of the `held` streams. Any thread, while streams take nothing."""
        if not held and not self._has_more:  # nearly always
            return Changes(deltas=[(number, delta_entry(choice, delta)) for number, _, choice, delta in self.deltas])
        begun = {number: one.head for number, one in self.begun.items()}
        changes = Changes(begun, forgotten=self.forgotten, attempts=self.attempts)
        if self.is_whole:
            changes.written = {number: whole(one.stream) for number, one in self.begun.items()}
            return changes
        streams = {number: stream for number, stream, _ in self.endings if number not in self.forgotten}
        streams.update(held)
        told = {number: Told() for number in streams}
        for number, _, choice, delta in self.deltas:
            if number in told:
                told[number].deltas.append(delta_entry(choice, delta))
            elif number not in self.forgotten:
                changes.deltas.append((number, delta_entry(choice, delta)))
        for number, stream, ending in self.endings:
            if number in told:
                add_ending(told[number], stream, ending)
        for number, stream in streams.items():
            if number in held or told[number].state != State.RUNNING:
                changes.written[number] = whole(stream, told[number])
            else:
                changes.told[number] = told[number]
        return changes
