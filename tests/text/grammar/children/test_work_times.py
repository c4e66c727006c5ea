"""Notes on what threads work on, and what they have taken: the process ends where that is too much."""

from __future__ import annotations

import os
import threading

import pytest

from app.text.grammar.children import work_times
from app.text.grammar.children.mask_memory import NUM_NOTES
from app.text.grammar.children.work_times import WorkTimes

LIMIT_S = 0.1


@pytest.fixture
def notes() -> memoryview:
    return memoryview(bytearray(8 * NUM_NOTES)).cast("Q")


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
