"""Streams that are recorded and then forgotten: they end, and nothing of them stays in the journal."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from app.journal.store import JournalStore
from app.streaming.kept import journaling
from app.streaming.kept.live_stream import State
from tests.api.serving import until
from tests.streaming.kept.live_engine import LiveEngine, delta, finished, live_stream, read_now
from tests.streaming.kept.recorded_deltas import deltas_of
from tests.streaming.kept.recorded_streams import begun, head, recording, stored, text_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def engine() -> LiveEngine:
    return LiveEngine()


async def test_a_forgotten_stream_is_in_no_byte_of_the_files(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "FORGET_S", 0.01)
    async with recording(path) as (_, journal):
        begun(engine, journal, "other")
        stream, _ = begun(engine, journal)
        for number in range(200):  # more batches than one commit deletes
            engine.put("r", delta("r", number + 1, f"a-secret-{number}"))
            engine.put("other", delta("other", number + 1, "b"))
            await journal.flush()
        journal.forget(stream)
        await until(lambda: not any(b"a-secret" in each.read_bytes() for each in path.parent.iterdir()))
        await journal.flush()
    found = stored(path)
    assert [*found] == ["other"]
    assert len(deltas_of(found["other"].told)) == 200


async def test_what_was_committed_is_not_committed_again_when_the_file_cannot_be_cleaned(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "FORGET_S", 0.0)
    async with recording(path) as (disk, journal):
        begun(engine, journal)
        old, _ = begun(engine, journal, "old")
        await journal.flush()
        is_full = True

        def truncate() -> None:
            nonlocal is_full
            if is_full:
                is_full = False
                raise sqlite3.OperationalError("database or disk is full")
            JournalStore.truncate(disk)

        monkeypatch.setattr(disk, "truncate", truncate)
        journal.forget(old)
        engine.put("r", delta("r", 1, "a"))
        await until(lambda: not is_full)
        await journal.flush()
        assert not journal.is_degraded
    assert [one.text for one in deltas_of(stored(path)["r"].told)] == ["a"]


async def test_a_cleaning_that_comes_too_early_comes_again(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "FORGET_S", 0.001)
    now = 0.0
    monkeypatch.setattr(journaling, "monotonic", lambda: now)
    async with recording(path) as (disk, journal):
        stream, _ = begun(engine, journal)
        engine.put("r", delta("r", 1, "a-secret"))
        await journal.flush()
        journal.forget(stream)
        await until(lambda: disk.num_commits > 3)
        now = 1.0
        await until(lambda: not any(b"a-secret" in each.read_bytes() for each in path.parent.iterdir()))


async def test_a_stream_that_is_forgotten_ends_nevertheless(path: Path, engine: LiveEngine):
    """Its time is over while it runs: it is cancelled and forgotten, and lets go of its grammar."""
    async with recording(path) as (_, journal):
        released: list[bool] = []
        stream = live_stream(engine, release=lambda: released.append(True))
        journal.begin(stream, head(stream))
        stream.start()
        stream.cancel()
        journal.forget(stream)
        await until(lambda: stream.is_over)
        assert released == [True]
    assert stored(path) == {}


async def test_what_a_forgotten_stream_tells_is_taken_and_not_written(path: Path, engine: LiveEngine):
    async with recording(path) as (disk, journal):
        stream, reader = begun(engine, journal)
        await journal.flush()
        disk.may_commit.clear()
        engine.put("r", delta("r", 1, "a"))
        journal.forget(stream)
        engine.put("r", delta("r", 2, "b"), finished("r"))
        disk.may_commit.set()
        await journal.flush()
        assert text_of(read_now(reader)) == "ab"
        assert stream.state is State.FINISHED
        await until(lambda: disk.num_batch_bytes == 0)
    assert stored(path) == {}


async def test_a_stream_that_was_begun_again_may_end_when_the_journal_is_closed(path: Path, engine: LiveEngine):
    async with recording(path) as (_, journal):
        stream, _ = begun(engine, journal)
        journal.note_attempt(stream, 1)
        await journal.flush()
    journal.forget(stream)
    stream.cancel()
    assert [*stored(path)] == ["r"]


async def test_a_journal_that_is_written_anew_is_cleaned(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "AGAIN_S", 0.0)
    monkeypatch.setattr(journaling, "RETRY_S", 0.0)
    monkeypatch.setattr(journaling, "FORGET_S", 0.0)
    async with recording(path) as (disk, journal):
        stream, _ = begun(engine, journal)
        engine.put("r", delta("r", 1, "a-secret"))
        await journal.flush()
        disk.is_full = True
        engine.put("r", delta("r", 2, "b"))
        await until(lambda: journal.is_degraded)
        journal.forget(stream)
        disk.is_full = False
        await until(lambda: not any(b"a-secret" in each.read_bytes() for each in path.parent.iterdir()))
