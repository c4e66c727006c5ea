"""The watchdog: ends a process whose engine or event loop makes no progress although there is work.

    engine  a task on the loop checks the engine's progress; none for the timeout ──▶ crash report, engine FAILED:
            `/livez` is 503, open streams end with `engine_error`, the server exits as after every failure: exit 70
    loop    a thread counts the wake-ups of that task; none for the timeout ──▶ crash report, exit 70 at once

Only time during which the observer itself was running counts (see `runtime/stall_detector.py`). So neither a process
that was stopped (SIGSTOP, a sleeping laptop) or got no CPU, nor a slow one that makes progress, triggers the watchdog.

The crash report is one JSON line and the stacks of all threads, on stderr, without prompts.

A thread that hangs inside native code and holds the interpreter's lock stops both observers too. This can only be
detected from outside: `/livez` does not respond.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import platform
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping

from app import __version__
from app.contract.engine_status import EngineHealth, EngineState, EngineStats
from app.contract.errors import EngineFailed
from app.engine.thread import EngineThread
from app.observe.log import json_line
from app.runtime.clock import monotonic
from app.runtime.stall_detector import StallDetector

EXIT_ENGINE_FAILED = EngineFailed.exit_code
# Interval of the checks: short enough to measure the event loop's lag, long enough to cost next to nothing.
INTERVAL_S = 0.25
MIN_INTERVAL_S = 0.01
MIN_OBSERVATIONS = 10  # within a timeout
STDERR = 2
# Longest wait for space in a full pipe. A reader that no longer reads stderr may be the reason for the hang.
MAX_WAIT_S = 1.0
# A write of up to this many bytes to a pipe with space does not block; POSIX guarantees 512.
PIECE_BYTES = getattr(select, "PIPE_BUF", 512)


class Watchdog:
    """Watches the engine and the event loop of one server; a timeout of 0 s only measures the lag of the loop.

    Attributes:
        has_fired: whether the watchdog has failed the engine.
    """

    def __init__(
        self,
        engine: EngineThread,
        timeout_s: float,
        *,
        stats: Callable[[], EngineStats] = EngineStats,
        observe_lag: Callable[[float], None] = lambda lag_s: None,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.has_fired = False
        self._engine = engine
        self._timeout_s = timeout_s
        wanted_s = timeout_s / MIN_OBSERVATIONS if timeout_s else INTERVAL_S
        self._interval_s = max(MIN_INTERVAL_S, min(INTERVAL_S, wanted_s))
        self._stats = stats
        self._observe_lag = observe_lag
        self._exit_process = exit_process
        self._num_wakeups = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        is_over = threading.Event()
        stall_detector = StallDetector(self._timeout_s, self._interval_s)
        if self._timeout_s:
            # A daemon thread does not keep the process from exiting.
            threading.Thread(target=self._watch_loop, args=(is_over,), name="quire-watchdog", daemon=True).start()
        try:
            while True:
                due = monotonic() + self._interval_s
                await asyncio.sleep(self._interval_s)
                now = monotonic()
                self._num_wakeups += 1
                self._observe_lag(max(now - due, 0.0))
                if self._timeout_s and not self.has_fired:
                    self._check_engine(stall_detector, now)
        finally:
            is_over.set()

    def _check_engine(self, stall_detector: StallDetector, now: float) -> None:
        health = self._engine.health()
        has_work = health.state is EngineState.READY and health.is_busy
        if stall_detector.observe((health.step, health.last_progress_time) if has_work else None, now):
            self.has_fired = True
            message = f"The engine has made no progress for {self._timeout_s:g} s although it has work."
            self._engine.fail(EngineFailed(message))
            self._report(message, health)

    def _watch_loop(self, is_over: threading.Event) -> None:
        """Check the wake-ups of `run`, in a thread of its own."""
        stall_detector = StallDetector(self._timeout_s, self._interval_s)
        while not is_over.wait(self._interval_s):
            if stall_detector.observe(self._num_wakeups, monotonic()):
                self._report(f"The event loop has been blocked for {self._timeout_s:g} s.", self._engine.health())
                self._exit_process(EXIT_ENGINE_FAILED)
                return

    def _report(self, message: str, health: EngineHealth) -> None:
        stats = self._stats()
        fields = {
            "state": health.state,
            "step": health.step,
            "running": stats.queues.num_running,
            "waiting": stats.queues.num_waiting,
            "paused": stats.queues.num_paused,
            "free_blocks": stats.blocks.num_free,
            "blocks": stats.blocks.num_blocks,
            "pid": os.getpid(),
        }
        write_crash_report(message, fields)


def write_crash_report(
    message: str, fields: Mapping[str, object], *, fd: int = STDERR, max_wait_s: float = MAX_WAIT_S
) -> None:
    """Write why the process ends; `fields` go into the JSON line. Any thread; never raises, blocks up to `max_wait_s`.

    Writes to the file descriptor without locks, because hanging threads may hold those of `logging` and `sys.stderr`.
    """
    line = json_line("critical", "quire.watchdog", message, {**fields, "versions": _versions()}, created=time.time())
    report = f"{line}\n".encode() + _stacks()
    with contextlib.suppress(OSError, ValueError):
        while report and select.select([], [fd], [], max_wait_s)[1]:
            report = report[os.write(fd, report[:PIECE_BYTES]) :]


def _versions() -> dict[str, str]:
    torch = sys.modules.get("torch")
    versions = {"quire": __version__, "python": platform.python_version()}
    return versions if torch is None else {**versions, "torch": str(torch.__version__)}


def _stacks() -> bytes:
    """Return the stacks of all threads; nothing if no temporary file can be made."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
    return b""
