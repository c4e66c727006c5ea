"""Durations of the startup phases of each thread, in seconds since the process began."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.contract.counts import Counts, gauge
from app.runtime.clock import Clock, monotonic

BAR_WIDTH = 40
PHASES: Mapping[str, str] = {
    "command_line": "Python starts, and reads the options",
    "import_server": "the server's modules are imported",
    "open_model": "the model's files are checked, and its tokenizer is read",
    "open_server": "until the server listens",
    "import_torch": "torch and the engine's modules are imported",
    "prepare_kernels": "the kernels are found or compiled",
    "load_weights": "the weights are read and packed",
    "allocate_cache": "the KV cache is allocated, and the step is recorded",
    "read_vocabulary": "the tokens are read for grammars",
}
"""What happens in each phase of `quire serve`, by its name: those of the main thread, then those of the engine's."""


class Phase(NamedTuple):
    """One startup phase of a thread."""

    thread: str
    name: str
    begin: float
    end: float


@dataclass(slots=True)
class StartupCounts(Counts):
    """The startup phases that have ended."""

    seconds: Mapping[str, float] = gauge(
        "quire_startup_seconds",
        "Seconds of each phase of the start; phases of different threads overlap. "
        + "; ".join(f"{name}: {what}" for name, what in PHASES.items())
        + ".",
        by=("phase",),
        start={},
    )


class StartTimings:
    """The startup phases of one process; the phases of a thread do not overlap. Any thread.

    `age_s` is the age of the process: the first phase includes the time before this object was made.
    """

    def __init__(self, age_s: float = 0.0, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._began = clock() - age_s
        self._begins = {threading.get_ident(): 0.0}
        self._phases: list[Phase] = []

    def begin(self) -> None:
        """Begin the first phase of the calling thread. For the thread that made this object, the process began it."""
        self._begins[threading.get_ident()] = self.now()

    def end(self, name: str) -> None:
        """End the current phase of the calling thread under `name`, and begin its next one."""
        thread, now = threading.get_ident(), self.now()
        self._phases.append(Phase(_thread_name(), name, self._begins.get(thread, 0.0), now))
        self._begins[thread] = now

    def now(self) -> float:
        """Return the seconds since the process began."""
        return self._clock() - self._began

    def phases(self) -> list[Phase]:
        """Return the phases that have ended so far, sorted by their beginning."""
        return sorted(self._phases, key=lambda phase: phase.begin)

    @property
    def counts(self) -> StartupCounts:
        """The seconds of each phase, as the metrics show them."""
        seconds: dict[str, float] = {}
        for phase in self.phases():
            seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.end - phase.begin
        return StartupCounts(seconds)

    def lines(self) -> list[str]:
        """Return a table of all phases with bars on a common scale."""
        phases = self.phases()
        total = max((phase.end for phase in phases), default=0.0)
        width = max((len(phase.name) for phase in phases), default=0)
        return [f"Startup phases of the first {total:.2f} s:"] + [
            f"  {phase.thread:<7}{phase.name:<{width}}  {phase.end - phase.begin:6.3f} s  {_bar(phase, total)}"
            for phase in phases
        ]


def process_age() -> float:
    """Return the seconds since this process began or, without /proc, the CPU time that it has used."""
    try:
        # Field 22 is the start time in clock ticks since boot. The name in field 2 may contain spaces: count after it.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return time.process_time()


def _thread_name() -> str:
    return {"MainThread": "main"}.get(name := threading.current_thread().name, name.removeprefix("quire-"))


def _bar(phase: Phase, total: float) -> str:
    begin, end = (round(BAR_WIDTH * at / total) if total else 0 for at in (phase.begin, phase.end))
    return " " * begin + "█" * (end - begin) if end > begin else " " * begin + "▏"
