"""Notes on what threads work on, and what they have taken: the process ends where that is too much."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from app.text.grammar.children import work_times
from app.text.grammar.children.mask_memory import CULPRIT, MAIN, NO_SEQUENCE, NUM_NOTES, SIGNAL, WATCHER
from app.text.grammar.children.work_times import STUCK_S, WorkTimes, culprit_of, suspects_of

LIMIT_S = 0.1


@pytest.fixture
def notes() -> memoryview:
    return memoryview(bytearray(8 * NUM_NOTES)).cast("Q")


@pytest.fixture(autouse=True)
def timers(notes: memoryview, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The timers that were set, each with the note of the first thread then; a real one would end this process."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(work_times.signal, "setitimer", lambda *given: found.append((*given, notes[MAIN])))
    return found


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The processor time of every thread."""
    seconds = [0.0]
    monkeypatch.setattr(work_times, "_processor_time", lambda thread: seconds[0])
    return seconds


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were ended."""
    found: list[int] = []
    monkeypatch.setattr(work_times.os, "kill", lambda pid, signal: found.append(pid))
    return found


def test_who_works_on_one_sequence_for_too_long_is_noted(notes: memoryview, spent: list[float], ends: list[int]):
    times = WorkTimes(notes, LIMIT_S)
    times.add(1, threading.current_thread())
    assert times.index() == 1
    times.note(1, 7)
    times.check()
    spent[0] += LIMIT_S / 2
    times.check()
    assert not ends and notes[1] == 7
    spent[0] += LIMIT_S / 2
    times.check()
    assert ends == [os.getpid()] and notes[0] == 7


def test_each_note_begins_anew_and_so_does_a_time_without_work(notes: memoryview, spent: list[float], ends: list[int]):
    times = WorkTimes(notes, LIMIT_S)
    times.add(1, threading.current_thread())
    for _ in range(5):
        times.note(1, 7)
        times.check()
        spent[0] += LIMIT_S
    times.forget()
    times.check()
    times.note(1, 0)
    spent[0] += LIMIT_S
    times.check()
    assert not ends and notes[0] == 0


def test_work_for_no_sequence_ends_no_process(notes: memoryview, spent: list[float], ends: list[int]):
    times = WorkTimes(notes, LIMIT_S)
    times.add(MAIN, threading.current_thread())
    times.note(MAIN, NO_SEQUENCE)
    for _ in range(5):
        times.check()
        spent[0] += LIMIT_S
    assert not ends and notes[CULPRIT] == 0 and notes[MAIN] == NO_SEQUENCE


def test_the_systems_timer_begins_anew_before_a_note_is_written(
    notes: memoryview, timers: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
):
    """Else the time that one sequence took could be counted for the next one."""
    monkeypatch.setattr(work_times, "ARM_S", -1.0)
    times = WorkTimes(notes, LIMIT_S)
    for number in (7, 8, 0):
        times.note(MAIN, number)
    assert timers == [(signal.ITIMER_PROF, STUCK_S, before) for before in (0, 7, 8)]


def test_notes_that_follow_at_once_set_no_timer(
    notes: memoryview, timers: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
):
    """It costs a call of the system."""
    monkeypatch.setattr(work_times, "ARM_S", 1e9)
    times = WorkTimes(notes, LIMIT_S)
    for number in (7, 8, 0):
        times.note(MAIN, number)
    assert len(timers) == 1
    times.arm()
    assert len(timers) == 2


MASK_THREAD, OTHER_THREAD = 4, 5


@pytest.mark.parametrize(
    ("noted", "end", "culprit"),
    [
        ({MAIN: 7}, signal.SIGPROF, 7),
        ({MASK_THREAD: 7}, signal.SIGPROF, 7),
        ({CULPRIT: 8, MASK_THREAD: 7, OTHER_THREAD: 8}, signal.SIGKILL, 8),
        ({CULPRIT: 8, MASK_THREAD: 7}, signal.SIGPROF, 8),
        ({}, signal.SIGPROF, 0),
        ({MASK_THREAD: 7}, 0, 0),
        ({MASK_THREAD: 7}, signal.SIGKILL, 0),
        ({MASK_THREAD: 7}, signal.SIGABRT, 0),
        ({MASK_THREAD: 7, OTHER_THREAD: 8}, signal.SIGPROF, 0),
        ({MAIN: 7, 2: 7}, signal.SIGPROF, 0),
        ({2: 7}, signal.SIGPROF, 0),
        ({3: 7}, signal.SIGPROF, 0),
        ({MAIN: NO_SEQUENCE}, signal.SIGPROF, 0),
        ({MAIN: NO_SEQUENCE, MASK_THREAD: 7}, signal.SIGPROF, 0),
        ({MASK_THREAD: 7, WATCHER: NO_SEQUENCE}, signal.SIGPROF, 0),
    ],
)
def test_the_only_sequence_at_work_is_blamed_for_the_end_by_the_systems_timer(
    notes: memoryview, noted: dict[int, int], end: int, culprit: int
):
    """Not for other ends, not for compilation, and not where any other thread was at work, for whatever."""
    for index, number in noted.items():
        notes[index] = number
    notes[SIGNAL] = end
    assert culprit_of(notes) == culprit
    threads = {number for index, number in noted.items() if index != CULPRIT}
    assert suspects_of(notes) == threads - {NO_SEQUENCE}
