"""The polite end of a server: new work is refused, open answers may end, every socket hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from app.contract.engine_status import EngineState
from app.contract.ports import EngineClient
from app.runtime.clock import Clock, monotonic
from app.streaming.streams import Streams

# What readers and sockets get after the deadline to take the last words.
CLOSE_GRACE_S = 1.0


class Drain:
    """Ends the streams of one server. Loop only.

    Sockets that outlive their streams listen: each is told once, at the beginning, how many seconds there are.
    """

    def __init__(self, engine: EngineClient, streams: Streams, clock: Clock = monotonic) -> None:
        self._engine = engine
        self._streams = streams
        self._clock = clock
        self._deadline: float | None = None
        self._listeners: set[Callable[[float], None]] = set()
        self._are_gone = asyncio.Event()
        self._are_gone.set()

    @contextlib.contextmanager
    def listening(self, tell: Callable[[float], None]) -> Iterator[None]:
        """Call `tell(seconds left)` when the drain begins, or now if it has; it waits until the block is left."""
        self._listeners.add(tell)
        self._are_gone.clear()
        try:
            if self._deadline is not None:
                tell(self.seconds_left)
            yield
        finally:
            self._listeners.remove(tell)
            if not self._listeners:
                self._are_gone.set()

    @property
    def num_open(self) -> int:
        """How many answers are open."""
        return self._streams.num_open

    @property
    def seconds_left(self) -> float:
        """How long open answers still get, once the drain has begun."""
        return 0.0 if self._deadline is None else max(0.0, self._deadline - self._clock())

    async def run(self, timeout_s: float, *, only_begun: bool = False) -> None:
        """Refuse new work, give what is open `timeout_s` to end and to be read, then end the engine. Cancel-safe.

        With `only_begun` an answer that has no token yet fails at once.
        """
        self._deadline = self._clock() + timeout_s
        for tell in tuple(self._listeners):
            tell(timeout_s)
        await self._engine.drain(timeout_s, only_begun=only_begun)
        await _at_most(self._deadline - self._clock(), self._streams.wait_idle)
        if self._engine.health().state is not EngineState.FAILED:  # then nothing is left to end, but maybe a thread
            await self._engine.close()
        await _at_most(CLOSE_GRACE_S, self._streams.wait_idle)
        await _at_most(CLOSE_GRACE_S, self._are_gone.wait)


async def _at_most(timeout_s: float, wait: Callable[[], Awaitable[object]]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(timeout_s, 0.0)):
            await wait()
