"""Where the time of a start goes: what each thread did, in seconds since the process began."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from app.runtime.clock import Clock, monotonic

BAR_WIDTH = 40


class Phase(NamedTuple):
    """What a thread did for a while."""

    thread: str
    name: str
    begin: float
    end: float


class StartTimings:
    """The phases of one start, those of a thread one after the other. Any thread.

    `age_s` is the age of the process, so that what happened before there was anybody to measure counts too.
    """

    def __init__(self, age_s: float = 0.0, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._began = clock() - age_s
        self._begins = {threading.get_ident(): 0.0}
        self._phases: list[Phase] = []

    def begin(self) -> None:
        """Say that the first phase of the calling thread begins; the one that made this began with the process."""
        self._begins[threading.get_ident()] = self.now()

    def end(self, name: str) -> None:
        """Say that all the calling thread did since its last phase was `name`; its next phase begins."""
        thread, now = threading.get_ident(), self.now()
        self._phases.append(Phase(_thread_name(), name, self._begins.get(thread, 0.0), now))
        self._begins[thread] = now

    def now(self) -> float:
        """Return the seconds since the process began."""
        return self._clock() - self._began

    def phases(self) -> list[Phase]:
        """Return what has ended so far, by its beginning."""
        return sorted(self._phases, key=lambda phase: phase.begin)

    def lines(self) -> list[str]:
        """Return a table of all phases with bars on a common scale."""
        phases = self.phases()
        whole = max((phase.end for phase in phases), default=0.0)
        width = max((len(phase.name) for phase in phases), default=0)
        return [f"Where the first {whole:.2f} s went:"] + [
            f"  {phase.thread:<7}{phase.name:<{width}}  {phase.end - phase.begin:6.3f} s  {_bar(phase, whole)}"
            for phase in phases
        ]


def process_age() -> float:
    """Return the seconds since this process began; where /proc is absent, the CPU time it has used."""
    try:
        # Field 22 is the start time in clock ticks since boot; the name in field 2 may hold spaces, so count behind it.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return time.process_time()


def _thread_name() -> str:
    return {"MainThread": "main"}.get(name := threading.current_thread().name, name.removeprefix("quire-"))


def _bar(phase: Phase, whole: float) -> str:
    begin, end = (round(BAR_WIDTH * at / whole) if whole else 0 for at in (phase.begin, phase.end))
    return " " * begin + "█" * (end - begin) if end > begin else " " * begin + "▏"
