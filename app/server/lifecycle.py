"""The server from listening to exit: load progress, ready line, watchdog, drain on a signal.

    loading ──ready──▶ serving ──signal──▶ draining ──open answers ended, or drain_timeout──▶ exit 0
       │                  └──failed──▶ a moment for the last words ──▶ exit 70   second signal ──▶ exit 0 at once
       └──failed──▶ exit (the code says what failed)

uvicorn's own shutdown cuts WebSockets (1012) before it waits for anything, so the drain runs before it: `should_exit`
is set only after streams and sockets have had their last word (see `api/drain.py`). Ctrl-C is a person who waits: for
it, answers that have no token yet end at once; SIGTERM, which a supervisor sends, lets them have their time, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from app.api.drain import Drain
from app.contract.engine_status import EngineHealth, EngineState
from app.observe.console import Console
from app.runtime.clock import monotonic
from app.runtime.gc_tuning import freeze_after_startup
from app.runtime.startup_timings import StartTimings
from app.server.watchdog import Watchdog
from app.streaming.bridge import AsyncEngine

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What uvicorn may take after the drain to hand the last bytes to slow sockets.
SHUTDOWN_S = 2
# How long a server whose engine has failed goes on: readers get their errors, and probes of /livez a 503.
FAILURE_SHOWN_S = 1.0
# How often the end says how long it still takes.
COUNTDOWN_S = 0.2


class Server(uvicorn.Server):
    """uvicorn with our beginning and end; once `run` has returned, `has_failed` says whether a failure ended it.

    `health` is the state of the whole, which the health routes show too: engine and text side. `drain` ends what is
    open within `drain_timeout_s`. `watchdog` watches from the first moment to the last. `timings` are told on the
    `console` when the model is ready.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        health: Callable[[], EngineHealth],
        *,
        watchdog: Watchdog,
        drain: Drain,
        drain_timeout_s: float,
        console: Console,
        listening_line: str,
        ready_line: Callable[[], str],
        timings: StartTimings | None = None,
        failure_shown_s: float = FAILURE_SHOWN_S,
    ) -> None:
        super().__init__(config)
        self.has_failed = False
        self._engine = engine
        self.health = health
        self.watchdog = watchdog
        self._drain = drain
        self._drain_timeout_s = drain_timeout_s
        self._console = console
        self._listening_line = listening_line
        self._ready_line = ready_line
        self._timings = timings
        self._state = EngineState.LOADING
        self._failure_shown_s = failure_shown_s
        self._last_time = 0.0  # of a server that has failed
        self._ending: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then load the model beside it: the page and the health routes answer meanwhile."""
        await super().startup(sockets)
        if self._timings is not None:
            self._timings.end("open the server")
        self._console.print_line(self._listening_line)
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
            loop.add_signal_handler(number, self._on_signal, number)
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
            freeze_after_startup()
            if self._timings is not None:
                self._console.print_line("\n".join(self._timings.lines()))
            self._console.print_line(self._ready_line())
        elif health.state is EngineState.LOADING:
            self._console.show_status(f"Loading the model: {health.progress:.0%}")
        self._state = health.state

    def _on_signal(self, number: signal.Signals) -> None:
        if self._ending is not None:
            self._console.clear_status()
            os._exit(0)
        self._watch(self.health())  # what has happened since the last look is told before the end
        self._ending = asyncio.get_running_loop().create_task(self._shut_down(number))

    async def _shut_down(self, number: signal.Signals) -> None:
        self._console.print_line(
            "Shutting down: finishing open requests, rejecting new ones. Press Ctrl-C again to stop now."
        )
        countdown = asyncio.get_running_loop().create_task(self._count_down())
        try:
            await self._drain.run(self._drain_timeout_s, only_begun=number is signal.SIGINT)
            self.has_failed = self.health().state is EngineState.FAILED
        finally:
            countdown.cancel()
            self._console.clear_status()
            self.should_exit = True

    async def _count_down(self) -> None:
        """Say how many answers are waited for, and how long at most."""
        while True:
            num_open, seconds = self._drain.num_open, math.ceil(self._drain.seconds_left)
            if num_open:
                answers = "1 answer" if num_open == 1 else f"{num_open} answers"
                self._console.show_status(f"Finishing {answers}, at most {seconds} s more. Ctrl-C again stops at once.")
            await asyncio.sleep(COUNTDOWN_S)
