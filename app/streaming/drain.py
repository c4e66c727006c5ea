"""Graceful shutdown: the engine rejects new requests, open ones may finish, and every socket is informed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from app.contract.engine_status import EngineState
from app.contract.ports import EngineClient
from app.runtime.clock import Clock, monotonic
from app.streaming.streams import Streams

# Time after the deadline for clients to read the final messages.
CLOSE_GRACE_S = 1.0


class Drain:
    """Ends the streams of one server. Loop only.

    Sockets, which stay open longer than their streams, register a callback with `listening`. `before_end` is awaited
    before the engine ends, which ends what has not ended.
    """

    def __init__(self, engine: EngineClient, streams: Streams, clock: Clock = monotonic) -> None:
        self._engine = engine
        self._streams = streams
        self._clock = clock
        self._deadline: float | None = None
        self._listeners: set[Callable[[float], None]] = set()
        self.before_end: Callable[[], Awaitable[None]] = _nothing
        self._are_gone = asyncio.Event()
        self._are_gone.set()

    @contextlib.contextmanager
    def listening(self, on_drain: Callable[[float], None]) -> Iterator[None]:
        """Call `on_drain(seconds left)` when the drain begins, or now if it has; it waits until the block is left."""
        self._listeners.add(on_drain)
        self._are_gone.clear()
        try:
            if self._deadline is not None:
                on_drain(self.seconds_left)
            yield
        finally:
            self._listeners.remove(on_drain)
            if not self._listeners:
                self._are_gone.set()

    @property
    def num_open(self) -> int:
        """The number of open streams."""
        return self._streams.num_open

    @property
    def seconds_left(self) -> float:
        """The time left for open streams; 0 before the drain."""
        return 0.0 if self._deadline is None else max(0.0, self._deadline - self._clock())

    async def run(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Reject new requests, let open ones finish and be read for `timeout_s`, then end the engine. Cancel-safe.

        With `only_begun`, requests without a token fail at once.
        """
        self._deadline = self._clock() + timeout_s
        for on_drain in tuple(self._listeners):
            on_drain(timeout_s)
        await self._engine.drain(timeout_s, only_begun=only_begun)
        await _at_most(self._deadline - self._clock(), self._streams.wait_idle)
        await self.before_end()
        if (
            self._engine.health().state is not EngineState.FAILED
        ):  # a failed engine has no requests, and its thread may hang
            await self._engine.close()
        await _at_most(CLOSE_GRACE_S, self._streams.wait_idle)
        await _at_most(CLOSE_GRACE_S, self._are_gone.wait)


async def _nothing() -> None:
    """Do nothing."""


async def _at_most(timeout_s: float, wait: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(timeout_s, 0.0)):
            await wait()
