"""uvicorn's server, which ends at once when it is told to, for the tests that serve in their own process.

The original looks ten times a second whether it shall end and whether its connections have, and so takes a third of a
second; the tests end a thousand servers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

LOOK_S = 0.002


class QuickServer(uvicorn.Server):
    """Looks more often, and does the same else."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await until(lambda: self.should_exit)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for listener in self.servers:
            listener.close()
        for connection in list(state.connections):
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
