"""Which sequence each thread of the process that finds masks works on, and for how much of its processor time.

A call of the library that takes too long cannot be stopped, so the whole process ends itself; the first note in the
shared memory then says whose sequence it was. Where a call keeps the interpreter's lock nobody can write that: the
system ends the process by SIGPROF, and the notes of threads may say it (see `culprit_of`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from math import inf

from app.text.grammar.children.mask_memory import COMPILERS, CULPRIT, MAIN, NO_SEQUENCE, NUM_NOTES, SIGNAL

TICK_S = 0.01
"""How often one looks."""
STUCK_S = 0.5
"""Processor time after which the system ends the process, if `check` is not called: a call may keep the lock."""
ARM_S = 0.001
"""A note lets that time begin anew, but not again within this time on the clock: each would be a call of the system."""


class WorkTimes:
    """Notes of threads, each by its index, in `notes`. Any thread; `check` and `forget` by the one that watches.

    `limit_s` is the most processor time of a thread for one sequence in a step.
    """

    def __init__(self, notes: memoryview, limit_s: float) -> None:
        self._notes = notes
        self._limit_s = limit_s
        self._calls = [0] * NUM_NOTES  # of each thread: counts what it has worked on
        self._armed_at = -inf
        self._threads: dict[int, threading.Thread] = {}
        self._seen: dict[int, tuple[int, float]] = {}  # of each thread: what it worked on, and its processor time then

    def add(self, index: int, thread: threading.Thread) -> None:
        """Watch a thread."""
        self._threads[index] = thread

    def index(self) -> int:
        """Return the index of the thread that calls."""
        thread = threading.current_thread()
        return next(index for index, each in self._threads.items() if each is thread)

    def note(self, index: int, sequence_id: int) -> None:
        """Note which sequence a thread works on from now on, or NO_SEQUENCE; 0 is no work."""
        if time.monotonic() - self._armed_at > ARM_S:
            self.arm()  # before the note: else what it replaces could have taken the time that the next one ends for
        self._calls[index] += 1
        self._notes[index] = sequence_id

    def arm(self) -> None:
        """Let the system end the process unless this is called again: before any work, and while there is some."""
        now = time.monotonic()  # read before the timer begins: the timer is never older than `_armed_at` says
        signal.setitimer(signal.ITIMER_PROF, STUCK_S)
        self._armed_at = now

    def forget(self) -> None:
        """Begin anew, after a time without work."""
        self._seen.clear()

    def check(self) -> None:
        """End the process if a thread has worked on one sequence for too long. Called every TICK_S."""
        for index, thread in self._threads.items():
            sequence_id = self._notes[index]
            calls, spent_s = self._calls[index], _processor_time(thread)
            if sequence_id in (0, NO_SEQUENCE) or index not in self._seen or self._seen[index][0] != calls:
                self._seen[index] = (calls, spent_s)
            elif spent_s - self._seen[index][1] > self._limit_s - TICK_S:  # it had begun before
                self._notes[CULPRIT] = sequence_id
                os.kill(os.getpid(), signal.SIGKILL)


def culprit_of(notes: Sequence[int]) -> int:
    """Return the sequence that has ended a process; 0 where another one may have done that, or none.

    SIGPROF counts the time of all threads, so it blames the sequence of a thread only where no other thread has a note.
    Such a thread has done next to nothing since the timer began: whatever may take long is done under a note, if only
    NO_SEQUENCE, and each change of a note lets the timer begin anew, but for ARM_S in each thread. So the note is not
    of work that was done before, nor has its thread waited while another one worked: nearly all of STUCK_S was taken by
    that thread, for that sequence, in one step, which is a multiple of what it may take. Compilation counts for none.
    """
    if notes[CULPRIT]:
        return notes[CULPRIT]
    working = [index for index in range(MAIN, SIGNAL) if notes[index]]
    if notes[SIGNAL] != signal.SIGPROF or len(working) != 1 or working[0] in COMPILERS:
        return 0
    (index,) = working
    return 0 if notes[index] == NO_SEQUENCE else notes[index]


def suspects_of(notes: Sequence[int]) -> frozenset[int]:
    """Return the sequences that the threads of a process worked on."""
    return frozenset(notes[MAIN:SIGNAL]) - {0, NO_SEQUENCE}


def _processor_time(thread: threading.Thread) -> float:
    """Return the processor time of a thread; where the system does not tell, the time on the clock."""
    assert thread.ident is not None
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
