"""Scheduling policies: who comes first.

A policy gives each sequence a sort key once, when it is added; smaller comes first. Starting and resuming go from
the front of that order, victims are taken from its end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import attrgetter

from app.engine.schedule.sequence import Sequence

Policy = Callable[[Sequence], tuple[float, ...]]

_sort_key = attrgetter("sort_key")


def fcfs(sequence: Sequence) -> tuple[float, ...]:
    """First come, first served."""
    return (sequence.arrival_time, sequence.id)


def insert_in_order(line: list[Sequence], sequence: Sequence) -> None:
    """Put `sequence` into `line` at the place its sort key gives it."""
    insort(line, sequence, key=_sort_key)


def remove_in_order(line: list[Sequence], sequence: Sequence) -> None:
    """Take `sequence` out of `line`, which is in order of the sort keys (no two are equal)."""
    index = bisect_left(line, sequence.sort_key, key=_sort_key)
    assert line[index] is sequence, f"sequence {sequence.id} is not in its line"
    del line[index]
