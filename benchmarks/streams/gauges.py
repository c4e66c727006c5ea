"""Measurements of a server process by itself: CPU time, memory, lag of the loop, context switches. Linux."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.runtime.clock import monotonic
from benchmarks.streams.histogram import Histogram

LAG_INTERVAL_S = 0.01


class Gauges:
    """Reads the gauges of this process. Loop only.

    `source_cpu_s` returns the CPU seconds of the token source, which are not the server's.
    """

    def __init__(self, source_cpu_s: Callable[[], float]) -> None:
        self._source_cpu_s = source_cpu_s
        self._lags = Histogram()
        self._is_watching = False

    def watch(self, is_watching: bool) -> None:
        """Start or stop measuring the lag of a timer.

        A wake-up costs as much as some events, so nothing else is measured at the same time.
        """
        self._is_watching = is_watching
        self._set_timer()

    def _set_timer(self) -> None:
        if self._is_watching:
            # Not the loop's own time, which uvloop looks up once in a turn.
            asyncio.get_running_loop().call_later(LAG_INTERVAL_S, self._on_timer, monotonic() + LAG_INTERVAL_S)

    def _on_timer(self, due: float) -> None:
        self._lags.add(max(monotonic() - due, 0.0))
        self._set_timer()

    def lags(self) -> Histogram:
        """Return the lags since the last call."""
        lags, self._lags = self._lags, Histogram()
        return lags

    def read(self) -> dict[str, Any]:
        """Return all other gauges: seconds, KiB, counts."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "time": monotonic(),
            "process_s": time.process_time(),
            "loop_s": time.thread_time(),
            "source_s": self._source_cpu_s(),
            "waited_s": _waited_s(),
            "rss_kib": _status_kib("VmRSS"),
            "pss_kib": _pss_kib(),
            "switches": usage.ru_nvcsw,
            "forced_switches": usage.ru_nivcsw,
        }


def thread_cpu_s(name: str) -> float:
    """Return the CPU seconds of this process's thread of that name, 0 without one."""
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def _waited_s() -> float:
    """Seconds that the process's first thread was ready to run but had no core; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def _status_kib(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def _pss_kib() -> int | None:
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:  # a kernel without it
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), None)
