"""How sessions are used: opened, read and closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from app.contract.events import EngineEvent


class EventReader(ABC):
    """An answer that is open in its `async with` block, and yields lists of events in an `async for`. Loop only."""

    @abstractmethod
    def open(self) -> None:
        """Begin to read: submit the requests, or attach to a stream that has them. If that fails, it is closed."""

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close in case of an error."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def close(self) -> None:
        """Stop reading; requests that only this reader has are aborted. Idempotent, never blocks."""

    @abstractmethod
    async def receive(self) -> list[EngineEvent]:
        """Wait for events and return them; [] when the answer is over. Cancel-safe: no event is lost."""

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        events = await self.receive()
        if not events:
            raise StopAsyncIteration
        return events
