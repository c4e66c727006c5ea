"""Which sequence each thread of the process that finds masks works on, and for how much of its processor time.

A call of the library that takes too long cannot be stopped, so the whole process ends itself; the first note in the
shared memory then says whose sequence it was.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from app.text.grammar.children.mask_memory import NUM_NOTES

TICK_S = 0.01
"""How often one looks."""
STUCK_S = 0.5
"""Processor time after which the system ends the process, if `check` is not called: a call may keep the lock."""


class WorkTimes:
    """Notes of threads, each by its index, in `notes`. Any thread; `check` and `forget` by the one that watches.

    `limit_s` is the most processor time of a thread for one sequence in a step.
    """

    def __init__(self, notes: memoryview, limit_s: float) -> None:
        self._notes = notes
        self._limit_s = limit_s
        self._calls = [0] * NUM_NOTES  # of each thread: counts what it has worked on
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
        """Note which sequence a thread works on from now on; 0 is none."""
        self._calls[index] += 1
        self._notes[index] = sequence_id

    def arm(self) -> None:
        """Let the system end the process unless this is called again: before any work, and while there is some."""
        signal.setitimer(signal.ITIMER_PROF, STUCK_S)

    def forget(self) -> None:
        """Begin anew, after a time without work."""
        self._seen.clear()

    def check(self) -> None:
        """End the process if a thread has worked on one sequence for too long. Called every TICK_S."""
        for index, thread in self._threads.items():
            sequence_id = self._notes[index]
            calls, spent_s = self._calls[index], _processor_time(thread)
            if not sequence_id or index not in self._seen or self._seen[index][0] != calls:
                self._seen[index] = (calls, spent_s)
            elif spent_s - self._seen[index][1] > self._limit_s - TICK_S:  # it had begun before
                self._notes[0] = sequence_id
                os.kill(os.getpid(), signal.SIGKILL)


def _processor_time(thread: threading.Thread) -> float:
    """Return the processor time of a thread; where the system does not tell, the time on the clock."""
    assert thread.ident is not None
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
