"""The watchdog: ends a process whose engine, or whose event loop, stands still although there is work.

    engine  a task on the loop looks at the engine's progress; still for the timeout ──▶ crash report, engine FAILED:
            `/livez` is 503, open streams end with `engine_error`, the server ends as after every failure: exit 70
    loop    a thread counts the wake-ups of that task; none for the timeout ──▶ crash report, exit 70 at once

Standing still is measured in the time during which the one who looks was awake himself: each look counts for two
intervals at most, however long ago the one before was. So a process that was stopped (SIGSTOP, a laptop asleep) or
got no CPU for a while is not taken for one that hangs, and what is slow but moves never is.

A thread that hangs inside native code and never lets go of the interpreter stops both watchers, too. That can only be
seen from outside: `/livez` does not answer.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Protocol

from app.contract.engine_status import EngineHealth, EngineState, EngineStats
from app.contract.errors import EngineFailed, QuireError
from app.runtime.clock import Clock, monotonic
from app.runtime.stall_detector import StallDetector
from app.server.crash_report import write_crash_report

EXIT_ENGINE_FAILED = 70
# How often the watchers look: often enough for the loop's lag to mean something, seldom enough to cost nothing.
INTERVAL_S = 0.25
MIN_INTERVAL_S = 0.01
MIN_LOOKS = 10


class WatchedEngine(Protocol):
    """What the watchdog needs of the engine thread."""

    def health(self) -> EngineHealth:
        """See EnginePort."""

    def fail(self, error: QuireError) -> None:
        """See EngineThread."""


class Watchdog:
    """Watches one server's engine and event loop; a timeout of 0 s never fires, the loop's lag is measured anyway.

    Attributes:
        has_fired: whether the engine was given up.
    """

    def __init__(
        self,
        engine: WatchedEngine,
        timeout_s: float,
        *,
        stats: Callable[[], EngineStats] = EngineStats,
        observe_lag: Callable[[float], None] = lambda lag_s: None,
        clock: Clock = monotonic,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self.has_fired = False
        self._engine = engine
        self._timeout_s = timeout_s
        self._interval_s = max(MIN_INTERVAL_S, min(INTERVAL_S, timeout_s / MIN_LOOKS)) if timeout_s else INTERVAL_S
        self._stats = stats
        self._observe_lag = observe_lag
        self._clock = clock
        self._leave = leave
        self._num_wakeups = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        is_over = threading.Event()
        engine_stillness = StallDetector(self._timeout_s, self._interval_s)
        if self._timeout_s:
            # A daemon: it must not keep the process from exiting.
            threading.Thread(target=self._watch_loop, args=(is_over,), name="quire-watchdog", daemon=True).start()
        try:
            while True:
                due = self._clock() + self._interval_s
                await asyncio.sleep(self._interval_s)
                now = self._clock()
                self._num_wakeups += 1
                self._observe_lag(max(now - due, 0.0))
                if self._timeout_s and not self.has_fired:
                    self._look_at_engine(engine_stillness, now)
        finally:
            is_over.set()

    def _look_at_engine(self, stall_detector: StallDetector, now: float) -> None:
        health = self._engine.health()
        has_work = health.state is EngineState.READY and health.is_busy
        if stall_detector.observe((health.step, health.last_progress_time) if has_work else None, now):
            self.has_fired = True
            message = f"The engine has made no progress for {self._timeout_s:g} s although it has work."
            self._engine.fail(EngineFailed(message))
            self._report(message, health)

    def _watch_loop(self, is_over: threading.Event) -> None:
        """Look at the wake-ups of `run` from a thread of its own."""
        stall_detector = StallDetector(self._timeout_s, self._interval_s)
        while not is_over.wait(self._interval_s):
            if stall_detector.observe(self._num_wakeups, self._clock()):
                self._report(f"The event loop has stood still for {self._timeout_s:g} s.", self._engine.health())
                self._leave(EXIT_ENGINE_FAILED)
                return

    def _report(self, message: str, health: EngineHealth) -> None:
        stats = self._stats()
        fields = {
            "state": health.state,
            "step": health.step,
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "paused": stats.num_paused,
            "free_blocks": stats.num_free_blocks,
            "blocks": stats.num_blocks,
            "pid": os.getpid(),
        }
        write_crash_report(message, fields)
