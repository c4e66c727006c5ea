"""Bounded work off the event loop: tokenizing, templates, and whatever else would make streams stutter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.contract.errors import Draining
from app.streaming.turns import Turns

Result = TypeVar("Result")


class Background:
    """A few threads behind a bounded queue; when it is full, work is refused instead of piling up. Loop only.

    The queue is on the loop: a thread gets a call only when it is free for it. So a caller who gives up leaves nothing
    behind (an executor would keep a cancelled call and all it holds until a thread comes to it), and a call that runs
    keeps its thread's place until the thread is done, whether its caller still waits or not. `max_queue` calls may
    wait; the default is that of the engine's queue, so that a burst which the engine would take is not refused here.
    Accounts take turns (see `Turns`).
    """

    def __init__(self, name: str = "background", *, num_threads: int = 2, max_queue: int = 256) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"quire-{name}")
        self._free_threads = Turns(num_threads, max_queue)
        self._is_closed = False

    async def run(self, function: Callable[..., Result], *args: object, account: str = "") -> Result:
        """Call `function(*args)` on a thread, for `account`, and return its result or raise its exception.

        Cancel-safe: a call that waits is dropped, one that runs is finished and its result ignored.

        Raises:
            Overloaded: as much is waiting as may wait.
            Draining: `close` came before a thread was free.
        """
        if not self._is_closed:
            await self._free_threads.acquire(account)
        if self._is_closed:
            raise Draining("The server is shutting down.")
        work = asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        work.add_done_callback(self._end)
        return await asyncio.shield(work)

    def close(self) -> None:
        """Refuse what waits; the threads end after what they are doing. Does not block. Idempotent."""
        self._is_closed = True
        self._free_threads.release_all()
        self._executor.shutdown(wait=False)

    def _end(self, work: asyncio.Future[Result]) -> None:
        """A thread is free. An error counts as seen: asyncio would log that of a caller who has given up."""
        if not work.cancelled():
            work.exception()
        self._free_threads.release()
