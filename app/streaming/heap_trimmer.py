"""Returns what large requests have freed to the system, when they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from app.contract.errors import Draining, Overloaded
from app.runtime.gc_tuning import trim_heap
from app.streaming.background import Background

DELAY_S = 2.0


class HeapTrimmer:
    """Trims the heap on a thread, `delay_s` after the first large request since it last did. Loop only.

    Not right after each: then its values, or the exception that rejects it, are still there, and the next one takes
    the same memory again. Those that come within the delay, whose values may outlive it, have a trim of their own.
    """

    def __init__(self, threads: Background, delay_s: float = DELAY_S, trim: Callable[[], object] = trim_heap) -> None:
        self._threads, self._delay_s, self._trim = threads, delay_s, trim
        self._timer: asyncio.TimerHandle | None = None
        self._is_due_again = False
        self._task: asyncio.Task[None] | None = None

    def note_large(self) -> None:
        """Note that a large request was parsed, or that much else was or will be freed."""
        if self._timer is not None:
            self._is_due_again = True
        else:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._begin)

    def close(self) -> None:
        """Trim no more. Idempotent."""
        for each in (self._timer, self._task):
            if each is not None:
                each.cancel()

    def _begin(self) -> None:
        self._timer = None
        if self._is_due_again:
            self._is_due_again = False
            self.note_large()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        with suppress(Draining, Overloaded):  # then there are large requests, each of which is noted
            await self._threads.run(self._trim)
