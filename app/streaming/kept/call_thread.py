"""One thread beside the event loop for a task that calls it again and again, such as for each token.

A call costs less than half of one of `Background`, whose threads have a bounded queue, in which accounts take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from app.contract.errors import Draining

Result = TypeVar("Result")


class _Call(NamedTuple):
    """A call, and where its result goes."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    function: Callable[..., object]
    args: tuple[object, ...]


class CallThread:
    """A thread that makes calls one after the other. Loop only; one task at a time waits for it.

    A call that nobody waits for any longer is dropped or, if it runs, completed; its result is ignored.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: asyncio.Future[Any] | None = None
        self._due = 0.0  # when the call that is waited for is late
        self._timer: asyncio.TimerHandle | None = None  # one for many calls: each would cost as much as a call
        self._is_closed = False
        # A daemon: a disk that hangs must not keep the process.
        Thread(target=_make, args=(self._calls,), name=f"quire-{name}", daemon=True).start()

    async def run(self, limit_s: float, function: Callable[..., Result], *args: object) -> Result:
        """Call `function(*args)` on the thread, and return its result or raise its exception. Cancel-safe.

        Raises:
            TimeoutError: it takes longer than `limit_s`.
            Draining: the thread was closed.
        """
        if self._is_closed:
            raise Draining("The server is shutting down.")
        loop = asyncio.get_running_loop()
        self._waiting = future = loop.create_future()
        self._due = loop.time() + limit_s
        if self._timer is None or self._timer.when() > self._due:
            self._watch(loop)
        self._calls.put(_Call(loop, future, function, args))
        try:
            result: Result = await future
            return result
        finally:
            if self._waiting is future:
                self._waiting = None
            del future  # an exception has this frame, and the arguments in it, which may be large; the future has it

    def close(self) -> None:
        """Let the thread end after its calls. Does not block. Idempotent."""
        self._is_closed = True
        self._calls.put(None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._due, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise in the task that waits, if its call is late."""
        self._timer = None
        if self._waiting is not None and not self._waiting.done():
            if loop.time() < self._due:
                self._watch(loop)
            else:
                self._waiting.set_exception(TimeoutError())


def _make(calls: SimpleQueue[_Call | None]) -> None:
    """Make calls until there is None. The thread's own."""
    while (call := calls.get()) is not None:
        if call.future.done():
            continue
        result, error = None, None
        try:
            result = call.function(*call.args)
        except BaseException as raised:  # whatever it is, the caller gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            call.loop.call_soon_threadsafe(_end, call.future, result, error)
        del call, result, error  # they may be large


def _end(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Give the caller of a call its result, if it still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
