"""The clients of the soak, many at once, and the count of what came of their visits."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.resuming.asked import Asked
from benchmarks.soak.visits import End, Visit, Visitor

MAX_SHOWN = 20
_BAD = (End.WRONG, End.FAILED)


class Crowd:
    """Clients that visit one after the other, until they are told to rest. Loop only.

    Attributes:
        ends: how many visits ended so, by behaviour and end.
        faults: the first visits that went wrong, a line each.
    """

    def __init__(self, visitor: Visitor, requests: Sequence[Asked]) -> None:
        self.ends: Counter[tuple[str, End]] = Counter()
        self.faults: list[str] = []
        self._visitor = visitor
        self._requests: Iterator[Asked] = itertools.cycle(requests)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_resting = False

    def start(self, num_clients: int) -> None:
        """Let so many clients come, again and again."""
        self._is_resting = False
        self._tasks = [asyncio.create_task(self._come_and_go()) for _ in range(num_clients)]

    async def rest(self) -> None:
        """Wait until every client has ended its visit; none begins another one."""
        self._is_resting = True
        await asyncio.gather(*self._tasks)

    def stop(self) -> None:
        """End all visits at once. Idempotent."""
        for task in self._tasks:
            task.cancel()

    def count(self, *ends: End) -> int:
        """Return how many visits ended in one of these ways."""
        return sum(count for (_, end), count in self.ends.items() if end in ends)

    @property
    def availability(self) -> float:
        """The share of the well-behaved requests that were complete and correct."""
        num_good, num_bad = self.count(End.GOOD), self.count(*_BAD)
        return num_good / (num_good + num_bad) if num_good + num_bad else 0.0

    async def _come_and_go(self) -> None:
        while not self._is_resting:
            self._note(await self._visitor.visit(next(self._requests)))

    def _note(self, visit: Visit) -> None:
        self.ends[visit.behaviour, visit.end] += 1
        if visit.end in _BAD and len(self.faults) < MAX_SHOWN:
            self.faults.append(f"{visit.asked}, {visit.behaviour}: {visit.end}: {visit.why}")
