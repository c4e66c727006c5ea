"""uvicorn's server, which ends at once when it is told to, for the tests that serve in their own process.

The original looks ten times a second whether it shall end and whether its connections have, and so takes a third of a
second; the tests end a thousand servers. This one is woken: to look every 2 ms took 23 ms of a core in each second that
a server ran.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from websockets.exceptions import InvalidState

LOOK_S = 0.002


class QuickServer(uvicorn.Server):
    """Is woken when it shall end, looks more often whether its connections have, and does the same else."""

    _woken: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def should_exit(self) -> bool:
        """Whether it shall end; any thread, and a signal's handler, may say so."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, should_exit: bool) -> None:
        self._should_exit = should_exit
        if should_exit and self._woken is not None:
            loop, event = self._woken
            with suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(event.set)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self._woken = asyncio.get_running_loop(), asyncio.Event()
        if not self.should_exit:
            await self._woken[1].wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for listener in self.servers:
            listener.close()
        for connection in list(state.connections):
            with suppress(InvalidState):  # a WebSocket of uvicorn's own kind that is closing already
                connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await until(lambda: self.force_exit or not (state.connections or state.tasks))
        for task in [] if self.force_exit else state.tasks:
            task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()


async def until(condition: Callable[[], object]) -> None:
    """Look every `LOOK_S` seconds whether a condition holds."""
    while True:
        if condition():
            return
        await asyncio.sleep(LOOK_S)
