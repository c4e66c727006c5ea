"""What takes the loop some time to make, and is the same for all who ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from app.runtime.clock import Clock, monotonic

# Of the loop's time: so many clients that ask again and again hold nobody else up.
SHARE = 0.1

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Calls `make` once for all who ask at about the same time, and seldom enough to take `SHARE` of the loop at most.

    Who asks gets what was made after that. Loop only.
    """

    def __init__(self, make: Callable[[], Result], *, clock: Clock = monotonic) -> None:
        self._make = make
        self._clock = clock
        self._next: asyncio.Future[Result] | None = None
        self._earliest = 0.0

    async def get(self) -> Result:
        """Return what is made next. Cancel-safe. Raises what `make` raises."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(max(0.0, self._earliest - self._clock()), self._make_next)
        return await asyncio.shield(self._next)

    def _make_next(self) -> None:
        made, self._next = self._next, None
        assert made is not None
        began = self._clock()
        try:
            made.set_result(self._make())
        except Exception as error:
            made.set_exception(error)
        now = self._clock()
        self._earliest = now + (now - began) * (1 / SHARE - 1)
