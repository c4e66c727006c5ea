"""The server from listening to exit: load progress, ready line, watchdog, graceful shutdown.

    loading ──ready──▶ serving ──signal──▶ draining ──open requests ended, or drain_timeout──▶ exit 0
       │                  └──failed──▶ FAILURE_SHOWN_S for error responses ──▶ exit 70   second signal ──▶ exit 0
       └──failed──▶ exit (the code depends on the failure)

uvicorn's shutdown closes WebSockets (1012) before it waits for requests. Therefore `should_exit` is set only after the
drain, when streams and sockets have got their final messages (see `streaming/drain.py`). On SIGINT, which a user at a
terminal sends, requests without a token end at once; on SIGTERM, which a supervisor sends, they may finish too.
Whatever holds this up, `ProcessEnd` ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Callable

import uvicorn

from app.contract.engine_status import EngineHealth, EngineState
from app.observe.console import Console
from app.runtime.clock import monotonic
from app.runtime.gc_tuning import freeze_after_startup
from app.runtime.start_timings import StartTimings
from app.server.process_end import ProcessEnd
from app.server.watchdog import Watchdog
from app.streaming.async_engine import AsyncEngine
from app.streaming.drain import Drain

# Time for uvicorn after the drain to send the last bytes to slow sockets.
SHUTDOWN_S = 2
# Time that a server keeps running after its engine has failed: clients get errors, and probes of /livez a 503.
FAILURE_SHOWN_S = 1.0
# Interval of the countdown of the drain.
COUNTDOWN_S = 0.2


class Server(uvicorn.Server):
    """uvicorn's server with our startup and shutdown; after `run`, `has_failed` says whether a failure ended it.

    When `process_end` has got a signal, `drain` ends open requests within `drain_timeout_s`. `watchdog` runs from
    startup to exit. With `prints_timings` the `timings` are printed on the `console` when the model is ready.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        *,
        process_end: ProcessEnd,
        watchdog: Watchdog,
        drain: Drain,
        drain_timeout_s: float,
        console: Console,
        listening_line: str,
        ready_line: Callable[[], str],
        timings: StartTimings,
        prints_timings: bool,
    ) -> None:
        super().__init__(config)
        self.has_failed = False
        self._engine = engine
        self.health = engine.health
        self.process_end = process_end
        self.watchdog = watchdog
        self._drain = drain
        self._drain_timeout_s = drain_timeout_s
        self._console = console
        self._listening_line = listening_line
        self._ready_line = ready_line
        self._timings = timings
        self._prints_timings = prints_timings
        self._state = EngineState.LOADING
        self._exit_time = 0.0  # of a server whose engine has failed
        self._shutdown_task: asyncio.Task[None] | None = None
        self._watchdog_task: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then load the model in the background; the page and the health routes work meanwhile."""
        await super().startup(sockets)
        self._timings.end("open_server")
        self._console.print_line(self._listening_line)
        self._watchdog_task = asyncio.get_running_loop().create_task(self.watchdog.run())
        self._engine.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets as uvicorn does, then stop the watchdog."""
        try:
            await super().shutdown(sockets)
        finally:
            if self._watchdog_task is not None:
                self._watchdog_task.cancel()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Let `process_end` receive the signals; uvicorn would raise them again after a clean shutdown."""
        return self.process_end.capture_signals()

    async def on_tick(self, counter: int) -> bool:
        """Look for a signal and check the health ten times a second, in addition to uvicorn's own work."""
        if self._shutdown_task is None:
            self._check(self.health())
            if self.process_end.signal is not None:
                self._shutdown_task = asyncio.get_running_loop().create_task(self._shut_down(self.process_end.signal))
        return await super().on_tick(counter)

    def _check(self, health: EngineHealth) -> None:
        if health.state is EngineState.FAILED:
            if not self.has_failed:
                self.has_failed = True
                # An engine that fails while it loads has no clients to inform.
                self._exit_time = monotonic() + (FAILURE_SHOWN_S if self._state is EngineState.READY else 0.0)
            self.should_exit = monotonic() >= self._exit_time
            if self.should_exit:
                self.process_end.arm()
        elif self._state is EngineState.LOADING and health.state is EngineState.READY:
            freeze_after_startup()
            if self._prints_timings:
                self._console.print_line("\n".join(self._timings.lines()))
            self._console.print_line(self._ready_line())
        elif health.state is EngineState.LOADING:
            self._console.show_status(f"Loading the model: {health.progress:.0%}")
        self._state = health.state

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
        """Show the number of open requests, and the time left for them."""
        while True:
            num_open, seconds = self._drain.num_open, math.ceil(self._drain.seconds_left)
            if num_open:
                requests = "1 open request" if num_open == 1 else f"{num_open} open requests"
                self._console.show_status(f"Finishing {requests}, at most {seconds} s. Press Ctrl-C again to stop now.")
            await asyncio.sleep(COUNTDOWN_S)
