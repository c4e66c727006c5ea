"""Deadlines of requests: finds those that have passed without a look at the others.

A heap in order of time. A deadline that no longer counts is only marked dead, and removed when its time comes or when
half of the heap is dead, so every operation is O(log n) and dead entries cannot grow without bound.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

from app.contract.errors import DeadlineExceeded, QueueTimeout, QuireError
from app.contract.requests import EngineRequest

# Up to this many dead entries cost nothing worth a cleanup.
_MIN_WASTE = 64


@dataclass(slots=True)
class _Entry:
    time: float
    request: EngineRequest
    is_start: bool
    is_live: bool = True


class Deadlines:
    """The deadlines of all open requests. Engine thread only; pure."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Entry]] = []
        self._open: dict[str, list[_Entry]] = {}
        self._numbers = count()  # entries cannot be compared
        self._num_dead = 0

    @property
    def next_time(self) -> float | None:
        """When the next deadline is due; None if there is none."""
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def add(self, request: EngineRequest) -> None:
        """Watch the deadlines of `request`, if it has any."""
        if request.start_deadline is None and request.deadline is None:
            return
        times = ((request.start_deadline, True), (request.deadline, False))
        entries = [_Entry(time, request, is_start) for time, is_start in times if time is not None]
        for entry in entries:
            heapq.heappush(self._heap, (entry.time, next(self._numbers), entry))
        self._open[request.id] = entries

    def started(self, request_id: str) -> None:
        """Note that the request has started: its start deadline no longer counts. Unknown ids are ignored."""
        entries = self._open.get(request_id)
        if entries:
            self._forget([entry for entry in entries if entry.is_start])

    def remove(self, request_id: str) -> None:
        """Note that the request has ended. Unknown ids are ignored."""
        entries = self._open.pop(request_id, None)
        if entries:
            self._forget(entries)

    def expired(self, now: float) -> list[tuple[str, QuireError]]:
        """Return the ids of requests past a deadline, with the error; each is forgotten. O(1) when there are none."""
        if not self._heap or self._heap[0][0] > now:
            return []
        late = []
        while self._heap and self._heap[0][0] <= now:
            entry = self._heap[0][2]
            if entry.is_live:
                late.append((entry.request.id, _error(entry, now)))
                self.remove(entry.request.id)
            self._drop_dead()
        return late

    def _forget(self, entries: list[_Entry]) -> None:
        for entry in entries:
            self._num_dead += entry.is_live
            entry.is_live = False
        if self._num_dead > max(_MIN_WASTE, len(self._heap) // 2):
            self._heap = [item for item in self._heap if item[2].is_live]
            heapq.heapify(self._heap)
            self._num_dead = 0

    def _drop_dead(self) -> None:
        while self._heap and not self._heap[0][2].is_live:
            heapq.heappop(self._heap)
            self._num_dead -= 1


def _error(entry: _Entry, now: float) -> QuireError:
    request = entry.request
    had, allowed = now - request.arrival_time, entry.time - request.arrival_time
    if entry.is_start:
        return QueueTimeout(
            f"The request waited {had:.1f} s in the queue, and its limit is {allowed:.1f} s; try again later, or raise "
            "the limit."
        )
    return DeadlineExceeded(
        f"The answer was not complete after {had:.1f} s, and the limit of the request is {allowed:.1f} s; ask for "
        "fewer tokens, or raise the limit."
    )
