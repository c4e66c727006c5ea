"""The messages of one account: encoded once for all that watch with it, on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from app.contract.engine_figures import EngineFigures
from app.contract.engine_picture import Record
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
        num_watchers: who watches; the owner of the feed counts them.
        newest: the last message, None before the first.
    """

    def __init__(self, view: AccountView, threads: Background) -> None:
        self.num_watchers = 0
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

    async def wait_behind(self, number: int | None) -> LiveMessage:
        """Wait for a message other than the one with this number, which may be None. Cancel-safe."""
        while self._failure is None:
            if self.newest is not None and self.newest.number != number:
                return self.newest
            await self._published.wait()
        raise self._failure

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
    """One that watches a feed, at its own speed. Loop only."""

    def __init__(self, feed: AccountFeed) -> None:
        self._feed = feed
        self._number: int | None = None  # of the last message that was taken

    async def next(self) -> bytes:
        """Wait for the next message: a difference for who has taken the one before it, else a whole one. Cancel-safe.

        Raises:
            Exception: the pictures cannot be encoded.
        """
        message = await self._feed.wait_behind(self._number)
        has_last = self._number is not None and message.number == self._number + 1
        made = message.difference if has_last and message.difference is not None else await self._feed.whole(message)
        self._number = message.number
        return made
