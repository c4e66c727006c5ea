"""Deadlines of requests: finds those that have passed without a search through the others.

A heap in order of time. A deadline that no longer counts stays in the heap until its time comes or half of the heap
no longer counts, so every operation is O(log n) and such entries cannot grow without bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from app.contract.errors import DeadlineExceeded, QueueTimeout, QuireError
from app.contract.requests import EngineRequest

# Up to this many entries that no longer count cost nothing worth a cleanup.
_MIN_WASTE = 64


class _Entry(NamedTuple):
    """A deadline; `number` is unique, so that entries are never compared by their requests."""

    time: float
    number: int
    request: EngineRequest
    is_start: bool


class Deadlines:
    """The deadlines of all open requests. Engine thread only; pure."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._open: dict[str, list[_Entry]] = {}
        self._live: set[int] = set()  # numbers of the entries that count
        self._numbers = count()

    @property
    def next_time(self) -> float | None:
        """When the next deadline is due; None if there is none."""
        self._drop_dead()
        return self._heap[0].time if self._heap else None

    def add(self, request: EngineRequest) -> None:
        """Watch the deadlines of `request`, if it has any."""
        times = ((request.start_deadline, True), (request.deadline, False))
        entries = [_Entry(time, next(self._numbers), request, is_start) for time, is_start in times if time is not None]
        if entries:
            self._open[request.id] = entries
        for entry in entries:
            heapq.heappush(self._heap, entry)
            self._live.add(entry.number)

    def started(self, request_id: str) -> None:
        """Note that the request has started: its start deadline no longer counts. Idempotent; ignores unknown ids."""
        self._forget(entry for entry in self._open.get(request_id, ()) if entry.is_start)

    def remove(self, request_id: str) -> None:
        """Note that the request has ended. Unknown ids are ignored."""
        self._forget(self._open.pop(request_id, ()))

    def expired(self, now: float) -> list[tuple[str, QuireError]]:
        """Return the ids of requests past a deadline, with the error; each is forgotten. O(1) when there are none."""
        late = []
        while self._heap and self._heap[0].time <= now:
            entry = self._heap[0]
            if entry.number in self._live:
                late.append((entry.request.id, _error(entry, now)))
                self.remove(entry.request.id)
            self._drop_dead()
        return late

    def _forget(self, entries: Iterable[_Entry]) -> None:
        self._live.difference_update(entry.number for entry in entries)
        if len(self._heap) - len(self._live) > max(_MIN_WASTE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry.number in self._live]
            heapq.heapify(self._heap)

    def _drop_dead(self) -> None:
        while self._heap and self._heap[0].number not in self._live:
            heapq.heappop(self._heap)


def _error(entry: _Entry, now: float) -> QuireError:
    request = entry.request
    had, allowed = now - request.arrival_time, entry.time - request.arrival_time
    if entry.is_start:
        return QueueTimeout(
            f"The request waited {_seconds(had)} in the queue, and its limit is {_seconds(allowed)}; try again later, "
            "or raise the limit."
        )
    return DeadlineExceeded(
        f"The answer was not complete after {_seconds(had)}, and the limit of the request is {_seconds(allowed)}; ask "
        "for fewer tokens, or raise the limit."
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1e3 * value:.0f} ms"
