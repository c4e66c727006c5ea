"""Bounded work outside the event loop, such as tokenizing and rendering templates, which would delay streams."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from app.contract.errors import Draining, Overloaded

Result = TypeVar("Result")


class FairSemaphore:
    """A semaphore of `num_permits` with a bounded queue per account; the queues take turns. Loop only.

    At most `max_waiting` callers wait. If the queues are full, an account may have an equal share of them.
    """

    def __init__(self, num_permits: int, max_waiting: int) -> None:
        self._num_free = num_permits
        self._max_waiting = max_waiting
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # in the order of their turns
        self._last = ""  # the account that had the last turn

    async def acquire(self, account: str = "") -> None:
        """Wait for a permit. Cancel-safe: the permit of a cancelled caller goes to the next one.

        Raises:
            Overloaded: too many callers are waiting.
        """
        if self._num_free:
            self._num_free -= 1
            self._last = account
            return
        num_own = len(self._queues.get(account, ()))
        share = self._max_waiting // (len(self._queues) + (not num_own))
        if num_own >= share and sum(map(len, self._queues.values())) >= self._max_waiting:
            raise Overloaded("Too many requests are being prepared; try again later.")
        permit = asyncio.get_running_loop().create_future()
        self._queues.setdefault(account, deque()).append(permit)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.cancelled():
                self._remove(account, permit)
            else:
                self.release()
            raise

    def release(self) -> None:
        """Return a permit: it goes to the first caller of the account whose turn it is."""
        while self._queues:
            account = next((name for name in self._queues if name != self._last), self._last)
            queue = self._queues.pop(account)
            permit = queue.popleft()
            if queue:
                self._queues[account] = queue
            if not permit.done():
                permit.set_result(None)
                self._last = account
                return
        self._num_free += 1

    def release_all(self) -> None:
        """Give all waiting callers a permit."""
        while self._queues:
            self.release()

    def _remove(self, account: str, permit: asyncio.Future[None]) -> None:
        queue = self._queues.get(account, deque())
        with suppress(ValueError):  # `release` has removed the permit after it was cancelled
            queue.remove(permit)
        if not queue:
            self._queues.pop(account, None)


class Background:
    """A few threads behind a bounded queue; when it is full, work is rejected. Loop only.

    The queue is on the loop: a thread gets a call only when it is free. So a cancelled caller leaves nothing behind (an
    executor would keep its call and arguments until a thread is free), and a call that runs occupies its thread until
    it returns, even if its caller was cancelled. `max_queue` calls may wait; the default is that of the engine's queue,
    so that a burst which the engine accepts is not rejected here. Accounts take turns (see `FairSemaphore`).
    """

    def __init__(self, name: str = "background", *, num_threads: int = 2, max_queue: int = 256) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=f"quire-{name}")
        self._free_threads = FairSemaphore(num_threads, max_queue)
        self._is_closed = False

    async def run(self, function: Callable[..., Result], *args: object, account: str = "") -> Result:
        """Call `function(*args)` on a thread, for `account`, and return its result or raise its exception.

        Cancel-safe: a waiting call is dropped; a running one is completed, and its result is ignored.

        Raises:
            Overloaded: too many calls are waiting.
            Draining: `close` was called before a thread was free.
        """
        if not self._is_closed:
            await self._free_threads.acquire(account)
        if self._is_closed:
            raise Draining("The server is shutting down.")
        work = asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        work.add_done_callback(self._end)
        try:
            return await asyncio.shield(work)
        finally:
            del work  # an exception has this frame, and the arguments in it, which may be large; it is in the future

    def close(self) -> None:
        """Reject waiting calls; the threads end after their current calls. Does not block. Idempotent."""
        self._is_closed = True
        self._free_threads.release_all()
        self._executor.shutdown(wait=False)

    def _end(self, work: asyncio.Future[Result]) -> None:
        """Free a thread. The exception is retrieved: asyncio would log it if the caller was cancelled."""
        if not work.cancelled():
            work.exception()
        self._free_threads.release()
