"""Queues: every unfinished group is in exactly one, by its state and by whether its readers take tokens.

Each queue is in the policy's order. The queues count rows and seats too, because these are part of a state: only
RUNNING groups take seats, and only their sequences have rows, from the first step they are part of.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, pairwise
from operator import attrgetter

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.sequence import (
    FINISHED,
    PAUSED,
    PREEMPTED,
    RUNNING,
    SWAPPED,
    TRANSITIONS,
    WAITING,
    Sequence,
    SequenceStatus,
)
from app.engine.schedule.shares import SeatShares
from app.observe.shown_id import shown_id

_sort_key = attrgetter("sort_key")


class RowPool:
    """State rows 1..num_rows (row 0 is padding), and those released since the last plan. Engine thread only; O(1)."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows, 0, -1))
        self._released: list[int] = []

    @property
    def num_free(self) -> int:
        """Rows that no sequence has."""
        return len(self._free)

    def take(self) -> int:
        """Return a free row: the one released last, at first the lowest."""
        return self._free.pop()

    def release(self, row: int) -> None:
        """Make `row` free."""
        self._free.append(row)
        self._released.append(row)

    def pop_released(self) -> tuple[int, ...]:
        """Return the rows released since the last call."""
        if not self._released:
            return ()
        released, self._released = tuple(self._released), []
        return released

    def check_integrity(self, taken: list[int]) -> None:
        """Assert that every row is free or in `taken`, the rows that sequences have."""
        assert sorted(self._free + taken) == list(range(1, self.num_rows + 1)), "a row is lost or doubled"


class SequenceQueues:
    """Keeps groups in queues and moves them between states. Engine thread only.

    `resuming` holds the PAUSED groups whose readers take tokens, `paused` the others; `num_seats` counts the seats that
    RUNNING groups take. `shares` counts seats by account, under the policy `fair`.
    """

    def __init__(self, num_rows: int, shares: SeatShares | None = None) -> None:
        self.rows = RowPool(num_rows)
        self.shares = shares
        self.num_seats = 0
        self._changed: list[dict[SequenceGroup, None]] = []  # of those who read changes
        self.running: list[SequenceGroup] = []
        self.paused: list[SequenceGroup] = []
        self.resuming: list[SequenceGroup] = []
        self.waiting: list[SequenceGroup] = []
        self.returning: list[SequenceGroup] = []  # PREEMPTED and SWAPPED ones
        idle: list[SequenceGroup] = []
        self._queues: dict[tuple[SequenceStatus, bool], list[SequenceGroup]] = {
            (WAITING, True): self.waiting,
            (WAITING, False): [],
            (RUNNING, True): self.running,
            (RUNNING, False): self.running,
            (PAUSED, True): self.resuming,
            (PAUSED, False): self.paused,
            (PREEMPTED, True): self.returning,
            (PREEMPTED, False): idle,
            (SWAPPED, True): self.returning,
            (SWAPPED, False): idle,
        }

    @property
    def has_ready(self) -> bool:
        """Whether any group runs or could run, now or after the steps in flight; if not, the engine may sleep."""
        return bool(self.running or self.resuming or self.returning or self.waiting)

    @property
    def num_waiting(self) -> int:
        """How many groups are ready and have no seat: not started, resumed, or without their blocks."""
        return len(self.waiting) + len(self.returning) + len(self.resuming)

    @property
    def next_to_start(self) -> SequenceGroup | None:
        """The first ready group without blocks on the device: a new, preempted or swapped one."""
        returning, waiting = self.returning, self.waiting
        if returning and waiting:
            return min(returning[0], waiting[0], key=_sort_key)
        queue = returning or waiting
        return queue[0] if queue else None

    def num_ahead(self, group: SequenceGroup) -> int:
        """Return how many groups of `waiting` are before one of them, in the policy's order."""
        return bisect_left(self.waiting, group.sort_key, key=_sort_key)

    def report_changes(self) -> dict[SequenceGroup, None]:
        """Return a new dict, which the caller empties; it gets the groups that are added or change their state."""
        changed: dict[SequenceGroup, None] = {}
        self._changed.append(changed)
        return changed

    def stop_reporting(self, changed: dict[SequenceGroup, None]) -> None:
        """Put no more groups into a dict of `report_changes`."""
        self._changed = [each for each in self._changed if each is not changed]

    def holding(self) -> Iterator[SequenceGroup]:
        """Yield the groups that hold blocks, the first victims first."""
        for queue in (self.paused, self.resuming, self.running):
            yield from reversed(queue)

    def add(self, group: SequenceGroup) -> None:
        """Put a new group in its queue."""
        self._note_change(group)
        self._put(group)

    def move(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """Change the state of `group`; a FINISHED one leaves, and one that stops running releases rows and seats.

        Raises:
            ValueError: `TRANSITIONS` has no such transition; nothing was changed.
        """
        before = group.status
        if status not in TRANSITIONS[before]:
            raise ValueError(f"request {shown_id(group.request.id)} cannot go from {before.value} to {status.value}")
        group.status = status
        self._take_out(group, before)
        self._note_change(group)
        if status is not FINISHED:
            self._put(group)
        if before is RUNNING:
            self._add_seats(group.account, -group.num_seats)
            for sequence in group.open:
                self.release_row(sequence)
        elif status is RUNNING:
            self._add_seats(group.account, group.num_seats)

    def close(self, sequence: Sequence) -> None:
        """Take one ended sequence out of its group, which continues; the row and seat of the sequence are free."""
        group = sequence.group
        seats = group.num_seats
        group.close(sequence)
        self.release_row(sequence)
        if group.status is RUNNING:
            self._add_seats(group.account, group.num_seats - seats)

    def release_row(self, sequence: Sequence) -> None:
        """Release the row of a sequence that no longer runs, if the sequence has one."""
        if sequence.row is not None:
            self.rows.release(sequence.row)
            sequence.row = None

    def set_ready(self, group: SequenceGroup, ready: bool) -> None:
        """Note whether the readers of an unfinished group take tokens."""
        self._take_out(group, group.status)
        group.ready = ready
        self._put(group)

    def check_integrity(self) -> list[SequenceGroup]:
        """Assert that queues, states, seats and rows fit together; return the groups of all queues."""
        groups: dict[int, SequenceGroup] = {}
        for (status, ready), queue in self._queues.items():
            assert all(first.sort_key < second.sort_key for first, second in pairwise(queue)), "out of order"
            for group in queue:
                is_right = self._queues[group.status, group.ready] is queue
                assert is_right, f"request {shown_id(group.request.id)} is in the queue of {status}, {ready}"
                assert groups.setdefault(group.id, group) is group, "two groups have one id"
        queues = {id(queue): queue for queue in self._queues.values()}
        assert sum(map(len, queues.values())) == len(groups), "a group is in two queues"
        rows = [sequence.row for group in self.running for sequence in group.open if sequence.row is not None]
        self.rows.check_integrity(rows)
        assert self.num_seats == sum(group.num_seats for group in self.running), "seats are miscounted"
        for group in groups.values():
            has_rows = any(sequence.row is not None for sequence in group.open)
            assert group.status is RUNNING or not has_rows, "a row without running"
        if self.shares is not None:
            self.shares.check_integrity(self.running, chain(self.waiting, self.returning, self.resuming))
        return list(groups.values())

    def _note_change(self, group: SequenceGroup) -> None:
        for changed in self._changed:
            changed[group] = None

    def _put(self, group: SequenceGroup) -> None:
        queue = self._queues[group.status, group.ready]
        if not queue or queue[-1].sort_key < group.sort_key:  # as mostly
            queue.append(group)
        else:
            insort(queue, group, key=_sort_key)
        if self.shares is not None and group.ready and group.status is not RUNNING:
            self.shares.add_waiting(group)

    def _take_out(self, group: SequenceGroup, status: SequenceStatus) -> None:
        queue = self._queues[status, group.ready]
        index = 0 if queue[0] is group else bisect_left(queue, group.sort_key, key=_sort_key)  # no two keys are equal
        assert queue[index] is group, f"request {shown_id(group.request.id)} is not in its queue"
        del queue[index]
        if self.shares is not None and group.ready and status is not RUNNING:
            self.shares.remove_waiting(group)

    def _add_seats(self, account: str, number: int) -> None:
        self.num_seats += number
        if self.shares is not None:
            self.shares.add_seats(account, number)
