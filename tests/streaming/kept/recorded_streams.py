"""Streams that are recorded in a journal whose disk a test holds up or fills."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.contract.events import TokenDelta
from app.journal.entries import Head
from app.journal.store import Changes, JournalStore, StoredStream
from app.streaming.kept.journaling import Journaling
from app.streaming.kept.live_stream import LiveStream
from app.streaming.kept.waiting_reader import WaitingReader
from tests.streaming.kept.live_engine import LiveEngine, live_stream


class Disk(JournalStore):
    """A journal whose commits wait while it is closed, and fail while it is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_commit = threading.Event()
        self.may_commit.set()
        self.is_full = False
        self.num_begun = self.num_commits = 0

    def commit(self, changes: Changes) -> None:
        self._check()
        super().commit(changes)

    def rewrite(self, changes: Changes) -> None:
        self._check()
        super().rewrite(changes)

    def _check(self) -> None:
        self.num_begun += 1
        assert self.may_commit.wait(60)
        if self.is_full:
            raise sqlite3.OperationalError("database or disk is full")
        self.num_commits += 1


@asynccontextmanager
async def recording(path: Path) -> AsyncIterator[tuple[Disk, Journaling]]:
    disk = Disk(path)
    journal = Journaling(disk)
    journal.start()
    try:
        yield disk, journal
    finally:
        disk.may_commit.set()
        await journal.close()


def head(stream: LiveStream) -> Head:
    return Head(stream.id, b"", "/v1/completions", b"{}", False, None, 1.0, (1,), (2,), 300.0, b"model")


def begun(
    engine: LiveEngine, journal: Journaling, stream_id: str = "r", n: int = 1
) -> tuple[LiveStream, WaitingReader]:
    """A stream that is recorded, and its first reader."""
    stream = live_stream(engine, stream_id, n=n)
    journal.begin(stream, head(stream))
    stream.start()
    reader = WaitingReader(stream)
    reader.open()
    return stream, reader


def text_of(events: list[object]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenDelta))


def stored(path: Path) -> dict[str, StoredStream]:
    store = JournalStore(path)
    try:
        return {one.head.id: one for one in store.take_stored()}
    finally:
        store.close()
