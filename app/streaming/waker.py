"""Wakes the one task that waits for an event."""

from __future__ import annotations

import asyncio


class Waker:
    """An `asyncio.Event` for one waiter, cleared by waiting; cheaper, since each token uses it. Loop only."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake the waiter, if there is one; otherwise do nothing."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():  # done: the waiter was cancelled
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next wake. Cancel-safe."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
