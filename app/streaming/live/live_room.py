"""The room of those who watch the engine: pictures are made while somebody is there, and encoded once per account.

    engine ──picture──▶ LiveRoom ──▶ AccountFeed (AccountView on a thread) ──LiveMessage──▶ Watcher, Watcher, ...

Nothing queues up for who reads slowly: a watcher takes the newest message when its socket is free, and a whole one if
it has missed some. So it costs what a fast one costs.

An engine at rest makes no pictures, but its figures are of the last seconds, and go on changing: they are told again
with its last picture, until they stay.

No account can keep the others out: when all places are taken, one that has fewer takes the newest of the one with most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from app.contract.engine_figures import EngineFigures
from app.contract.engine_picture import EnginePicture
from app.contract.errors import RateLimitExceeded
from app.contract.ports import EngineClient
from app.streaming.background import Background
from app.streaming.live.account_feed import AccountFeed, Watcher
from app.streaming.live.account_view import AccountView
from app.streaming.live.picture_blocks import PictureBlocks

MAX_WATCHERS = 16
REST_S = 1.0
"""The time without a picture after which figures are told again."""


class LiveRoom:
    """Those who watch one engine; with `shows_all` they see whose all blocks are. Loop only.

    `figures` is called for each picture, and once in `rest_s` without one.
    """

    def __init__(
        self, engine: EngineClient, figures: Callable[[], EngineFigures], *, shows_all: bool, rest_s: float = REST_S
    ) -> None:
        self._engine = engine
        self._figures = figures
        self._shows_all = shows_all
        self._rest_s = rest_s
        self._threads = Background("live", num_threads=1, max_queue=2 * MAX_WATCHERS)
        self._feeds: dict[str, AccountFeed] = {}
        self._newest: EnginePicture | None = None
        self._told: EngineFigures | None = None  # to all
        self._resting: asyncio.Task[None] | None = None  # while somebody watches

    @property
    def num_watchers(self) -> int:
        """The number of those who watch."""
        return sum(len(feed.watchers) for feed in self._feeds.values())

    @contextlib.contextmanager
    def watching(self, account: str) -> Iterator[Watcher]:
        """Watch as an account, until the block is left.

        Raises:
            RateLimitExceeded: too many watch already.
        """
        if self.num_watchers >= MAX_WATCHERS:
            self._make_room(account)
        if not self._feeds:
            self._engine.watch(self._receive)
            self._resting = asyncio.create_task(self._tell_at_rest(), name="quire-live-rest")
        feed = self._feeds.get(account)
        if feed is None:
            feed = self._feeds[account] = AccountFeed(AccountView(account, shows_all=self._shows_all), self._threads)
            if self._newest is not None:  # an idle engine makes no other
                self._offer(self._newest, self._figures(), [feed])
        watcher = Watcher(feed)
        feed.watchers.append(watcher)
        try:
            yield watcher
        finally:
            if not watcher.is_displaced:  # else its place is another's already
                feed.watchers.remove(watcher)
                if not feed.watchers:
                    feed.close()
                    del self._feeds[account]
                    if not self._feeds:
                        self._end()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._threads.close()

    def _make_room(self, account: str) -> None:
        """Take a place from the account that has the most, if it then still has as many as the one that comes.

        Raises:
            RateLimitExceeded: no account has that many.
        """
        own = self._feeds.get(account)
        most = max(self._feeds.values(), key=lambda feed: len(feed.watchers))
        if len(most.watchers) < 2 + (0 if own is None else len(own.watchers)):
            raise RateLimitExceeded(f"{MAX_WATCHERS} watch already; close another live view, or try again later.")
        most.displace_newest()

    def _end(self) -> None:
        """Let the engine make no more pictures."""
        self._engine.watch(None)
        self._newest = None
        if self._resting is not None:
            self._resting.cancel()

    def _receive(self, picture: EnginePicture) -> None:
        self._newest, self._told = picture, self._figures()
        self._offer(picture, self._told, [*self._feeds.values()])

    async def _tell_at_rest(self) -> None:
        """Tell the figures again whenever they have changed and no picture has come meanwhile."""
        while True:
            before = self._newest
            await asyncio.sleep(self._rest_s)
            if before is not None and before is self._newest and (figures := self._figures()) != self._told:
                self._told = figures
                self._offer(replace(before, records=(), num_lost_records=0), figures, [*self._feeds.values()])

    def _offer(self, picture: EnginePicture, figures: EngineFigures, feeds: list[AccountFeed]) -> None:
        make_blocks = cache(partial(PictureBlocks, picture))  # of the first feed that needs them, on the thread
        for feed in feeds:
            feed.offer(make_blocks, figures, picture.records, picture.num_lost_records)
