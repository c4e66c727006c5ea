"""The messages of one account: encoded once for all that watch with it, on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from app.contract.engine_figures import EngineFigures
from app.contract.engine_picture import Record
from app.contract.errors import RateLimitExceeded
from app.streaming.background import Background
from app.streaming.live.account_view import AccountView
from app.streaming.live.live_message import LiveMessage
from app.streaming.live.picture_blocks import PictureBlocks

MAX_RECORDS = 4096
"""What may wait to be encoded, as in the engine's ring."""
BlocksMaker = Callable[[], PictureBlocks]


class _Waiting(NamedTuple):
    """The newest picture that is not encoded, and what happened since the last one that is."""

    make_blocks: BlocksMaker
    figures: EngineFigures
    records: tuple[Record, ...]
    num_lost: int


class AccountFeed:
    """Encodes the pictures for one account; a picture that comes while one is encoded replaces those that wait.

    Loop only.

    Attributes:
        watchers: who watches, in the order in which they came; the owner of the feed keeps it.
        newest: the last message, None before the first.
    """

    def __init__(self, view: AccountView, threads: Background) -> None:
        self.watchers: list[Watcher] = []
        self.newest: LiveMessage | None = None
        self._view = view
        self._threads = threads
        self._waiting: _Waiting | None = None
        self._published = asyncio.Event()  # of the next message, or a failure
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def offer(
        self, make_blocks: BlocksMaker, figures: EngineFigures, records: tuple[Record, ...], num_lost: int
    ) -> None:
        """Encode a picture, whose blocks are made on the thread, as soon as the one before is encoded."""
        if self._waiting is not None:
            records = self._waiting.records + records
            num_lost += self._waiting.num_lost + max(0, len(records) - MAX_RECORDS)
        self._waiting = _Waiting(make_blocks, figures, records[-MAX_RECORDS:], num_lost)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._encode(), name="quire-live-encode")

    async def wait_behind(self, watcher: Watcher) -> LiveMessage:
        """Wait for a message other than the last one that a watcher has taken. Cancel-safe."""
        while self._failure is None:
            watcher.check_place()
            if self.newest is not None and self.newest.number != watcher.number:
                return self.newest
            await self._published.wait()
        raise self._failure

    def displace_newest(self) -> None:
        """End the watcher that has come last, at once or when it asks for its next message."""
        self.watchers.pop().is_displaced = True
        self._wake()

    async def whole(self, message: LiveMessage) -> bytes:
        """Return a whole message, made once for all who need it. Cancel-safe."""
        return await self._threads.run(message.whole) if message.made_whole is None else message.made_whole

    def close(self) -> None:
        """Encode nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _encode(self) -> None:
        try:
            while (waiting := self._waiting) is not None:
                self._waiting = None
                self.newest = await self._threads.run(self._message, waiting)
                self._wake()
        except Exception as error:  # whoever watches gets it
            self._failure = error
            self._wake()

    def _message(self, waiting: _Waiting) -> LiveMessage:
        """Encode one picture. On the thread."""
        return self._view.next_message(waiting.make_blocks(), waiting.records, waiting.num_lost, waiting.figures)

    def _wake(self) -> None:
        published, self._published = self._published, asyncio.Event()
        published.set()


class Watcher:
    """One that watches a feed, at its own speed. Loop only.

    Attributes:
        number: that of the last message that it has taken, None before the first.
        is_displaced: its place belongs to another account.
    """

    def __init__(self, feed: AccountFeed) -> None:
        self.number: int | None = None
        self.is_displaced = False
        self._feed = feed

    async def next(self) -> bytes:
        """Wait for the next message: a difference for who has taken the one before it, else a whole one. Cancel-safe.

        Raises:
            RateLimitExceeded: its place belongs to another account.
            Exception: the pictures cannot be encoded.
        """
        message = await self._feed.wait_behind(self)
        has_last = self.number is not None and message.number == self.number + 1
        made = message.difference if has_last and message.difference is not None else await self._feed.whole(message)
        self.number = message.number
        return made

    def check_place(self) -> None:
        """Check that the watcher still has its place.

        Raises:
            RateLimitExceeded: it belongs to another account.
        """
        if self.is_displaced:
            raise RateLimitExceeded("Another account wants to watch, and yours has the most live views open.")
