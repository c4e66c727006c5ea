"""Bounded work off the event loop: tokenizing, templates, and whatever else would make streams stutter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.errors import Draining, Overloaded

Result = TypeVar("Result")


class Background:
    """A few threads behind a bounded queue; when it is full, work is refused instead of piling up. Loop only."""

    def __init__(self, name: str = "background", *, num_threads: int = 2, max_queue: int = 256) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"quire-{name}")
        self._capacity = num_threads + max_queue
        self._num_pending = 0
        self._is_closed = False

    async def run(self, function: Callable[..., Result], *args: object) -> Result:
        """Call `function(*args)` on a thread and return its result or raise its exception.

        Cancel-safe: a call that waits is dropped, one that runs is finished and its result ignored.

        Raises:
            Overloaded: as much is waiting as may wait.
            Draining: after `close`.
        """
        if self._is_closed:
            raise Draining("The server is shutting down.")
        if self._num_pending >= self._capacity:
            raise Overloaded("Too many requests are being prepared; try again later.")
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        """Drop what waits; the threads end after what they are doing. Does not block. Idempotent."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
