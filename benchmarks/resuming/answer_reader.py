"""Reads one answer to its end, over as many connections as it takes: the part that all transports share."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from app.loadgen.target import Target
from app.runtime.clock import monotonic
from benchmarks.api_client import ApiClient
from benchmarks.resuming.asked import Asked
from benchmarks.resuming.told import Told, WrongAnswer

RETRY_S = 0.05
GIVE_UP_S = 300.0
CANCEL_S = 30.0


class Broken(Exception):
    """A connection broke, or the server cannot answer now: the client may come back."""


class AnswerReader(ABC):
    """A client of one answer. With a key the answer is kept, and the client comes back to it.

    Attributes:
        asked: its request.
        told: what it has of the answer.
        stream: the id of the answer, once the client has it; None of an answer that is not kept.
        num_breaks: how often a connection broke, or could not be made.
        on_news: called when it was told something.
    """

    def __init__(self, asked: Asked, target: Target, *, is_kept: bool = True) -> None:
        self.asked = asked
        self.told = Told.nothing(asked.num_choices)
        self.stream: str | None = None
        self.num_breaks = 0
        self.on_news: Callable[[], None] = lambda: None
        self._target = target
        self._key = uuid.uuid4().hex if is_kept else None

    @property
    def num_received(self) -> int:
        """The tokens that were told so far."""
        return sum(self.told.positions)

    async def read(self) -> None:
        """Read to the end; come back after each break, if the answer is kept.

        Raises:
            Broken: the answer is not kept, or the server has told nothing for GIVE_UP_S.
            WrongAnswer: see `Told`.
        """
        had, give_up = -1, 0.0
        while not self.told.is_over:
            if self.num_received > had:
                had, give_up = self.num_received, monotonic() + GIVE_UP_S
            try:
                await self.read_once()
            except Broken:
                self.num_breaks += 1
                is_lost = self.stream is None and self.num_received > 0
                if self._key is None or is_lost or monotonic() > give_up:
                    raise
                await asyncio.sleep(RETRY_S)

    async def read_some(self, count: int) -> None:
        """Read until `count` tokens were told, or to the end, and hang up. The server may have sent more.

        Raises:
            Broken, WrongAnswer: see `read`.
        """
        has_enough = asyncio.Event()

        def look() -> None:
            if self.num_received >= count:
                has_enough.set()

        before, self.on_news = self.on_news, look
        reading = asyncio.ensure_future(self.read())
        waiting = asyncio.ensure_future(has_enough.wait())
        try:
            await asyncio.wait([reading, waiting], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            self.on_news = before
            for task in (reading, waiting):
                task.cancel()
                with suppress(asyncio.CancelledError, Broken, WrongAnswer):
                    await task

    @abstractmethod
    async def read_once(self) -> None:
        """Read over one connection until the answer is over.

        Raises:
            Broken: the connection broke before that.
            WrongAnswer: see `Told`.
        """

    async def cancel(self) -> None:
        """End the answer at the server, which has it kept.

        Raises:
            OSError, TimeoutError: the server cannot be reached.
        """
        await ApiClient(self._target, CANCEL_S).delete(f"/v1/streams/{self.stream}")
