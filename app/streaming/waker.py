"""Wakes the one task that waits for news."""

from __future__ import annotations

import asyncio


class Waker:
    """Like an Event that is cleared by waiting, for one waiter; cheaper, and each token pays for it. Loop only."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake whoever waits; what nobody waits for is forgotten."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next wake. Cancel-safe."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
