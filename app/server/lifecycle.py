"""The server from listening to exit: load progress, ready line, watchdog, drain on a signal.

    loading ──ready──▶ serving ──signal──▶ draining ──open answers ended, or drain_timeout──▶ exit 0
       │                  └──failed──▶ a moment for the last words ──▶ exit 70   second signal ──▶ exit 0 at once
       └──failed──▶ exit (the code says what failed)

uvicorn's own shutdown cuts WebSockets (1012) before it waits for anything, so the drain runs before it: `should_exit`
is set only after streams and sockets have had their last word (see `api/drain.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from app.clock import monotonic
from app.garbage import settle
from app.messages import EngineHealth, EngineState
from app.server.watchdog import Watchdog
from app.streaming.bridge import AsyncEngine
from app.timings import StartTimings

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What uvicorn may take after the drain to hand the last bytes to slow sockets.
SHUTDOWN_S = 2
# How long a server whose engine has failed goes on: readers get their errors, and probes of /livez a 503.
FAILURE_SHOWN_S = 1.0
# How often a long load says how far it is; most are over before the first time.
LOAD_REPORT_S = 2.0


class Server(uvicorn.Server):
    """uvicorn with our beginning and end; once `run` has returned, `has_failed` says whether a failure ended it.

    `health` is the state of the whole, which the health routes show too: engine and text side. `drain` ends politely
    what is open. `watchdog` watches from the first moment to the last. `timings` are announced when the model is ready.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        health: Callable[[], EngineHealth],
        *,
        watchdog: Watchdog,
        drain: Callable[[], Awaitable[None]],
        announce: Callable[[str], None],
        listening_line: str,
        ready_line: Callable[[], str],
        timings: StartTimings | None = None,
        load_report_s: float = LOAD_REPORT_S,
        failure_shown_s: float = FAILURE_SHOWN_S,
    ) -> None:
        super().__init__(config)
        self.has_failed = False
        self._engine = engine
        self.health = health
        self.watchdog = watchdog
        self._drain = drain
        self._announce = announce
        self._listening_line = listening_line
        self._ready_line = ready_line
        self._timings = timings
        self._state = EngineState.LOADING
        self._load_report_s = load_report_s
        self._next_report_time = monotonic() + load_report_s
        self._failure_shown_s = failure_shown_s
        self._last_time = 0.0  # of a server that has failed
        self._ending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then load the model beside it: the page and the health routes answer meanwhile."""
        await super().startup(sockets)
        if self._timings is not None:
            self._timings.end("open the server")
        self._announce(self._listening_line)
        self._watching = asyncio.get_running_loop().create_task(self.watchdog.run())
        self._engine.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets as uvicorn does; the watchdog looks on until that is done."""
        try:
            await super().shutdown(sockets)
        finally:
            if self._watching is not None:
                self._watching.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM ourselves; uvicorn would raise them again after a clean shutdown."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def on_tick(self, counter: int) -> bool:
        """Look at the health ten times a second, beside uvicorn's own housekeeping."""
        if self._ending is None:
            self._watch(self.health())
        return await super().on_tick(counter)

    def _watch(self, health: EngineHealth) -> None:
        if health.state is EngineState.FAILED:
            if not self.has_failed:
                self.has_failed = True
                # One that fails while it loads has no readers.
                self._last_time = monotonic() + (self._failure_shown_s if self._state is EngineState.READY else 0.0)
            self.should_exit = monotonic() >= self._last_time
        elif self._state is EngineState.LOADING and health.state is EngineState.READY:
            settle()
            self._announce(self._ready_line())
            if self._timings is not None:
                self._announce("\n".join(self._timings.lines()))
        elif health.state is EngineState.LOADING and monotonic() >= self._next_report_time:
            self._next_report_time = monotonic() + self._load_report_s
            self._announce(f"Loading the model: {health.progress:.0%}")
        self._state = health.state

    def _on_signal(self) -> None:
        if self._ending is not None:
            os._exit(0)
        self._watch(self.health())  # what has happened since the last look is told before the end
        self._ending = asyncio.get_running_loop().create_task(self._end_politely())

    async def _end_politely(self) -> None:
        self._announce("Stopping: open answers may end, new ones are refused. Once more stops at once.")
        try:
            await self._drain()
            self.has_failed = self.health().state is EngineState.FAILED
        finally:
            self.should_exit = True
