"""Streams that are recorded: nothing is told before it is in the journal, and a bad disk takes nothing from readers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.contract.errors import Draining, EngineFailed
from app.contract.events import Finished, FinishReason, RequestFailed, TokenDelta
from app.streaming.kept import journaling
from app.streaming.kept.live_stream import HIGH_WAITING, LiveStream, State
from app.streaming.kept.polling_reader import PollingReader
from app.streaming.kept.told_entries import restore
from app.streaming.kept.waiting_reader import StreamStopped, WaitingReader
from tests.api.serving import until
from tests.streaming.kept.live_engine import LiveEngine, delta, failed, finished, live_stream, read_now
from tests.streaming.kept.recorded_deltas import deltas_of
from tests.streaming.kept.recorded_streams import begun, recording, stored, text_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def engine() -> LiveEngine:
    return LiveEngine()


async def test_nothing_is_told_before_it_is_recorded(path: Path, engine: LiveEngine):
    async with recording(path) as (disk, journal):
        disk.may_commit.clear()
        stream, reader = begun(engine, journal)
        engine.put("r", delta("r", 1, "a"), delta("r", 2, "b"))
        await until(lambda: disk.num_begun > disk.num_commits)
        await asyncio.sleep(0.05)
        assert read_now(reader) == []
        disk.may_commit.set()
        await journal.flush()
        assert text_of(read_now(reader)) == "ab"
        assert journal.is_durable(stream)
        [*_, count, total] = journal.commit_s.family({}).samples
        assert count.value == disk.num_commits > 0 and total.value >= 0.05


async def test_what_was_told_is_taken_again_by_the_next_process(path: Path, engine: LiveEngine):
    async with recording(path) as (_, journal):
        stream, reader = begun(engine, journal, n=2)
        engine.put("r", delta("r", 1, "a"), delta("r", 1, "x", choice=1, size=2))
        await journal.flush()
        engine.put("r", delta("r", 2, "é"), finished("r", 0, num_tokens=2))
        await journal.flush()
        told = [event for event in read_now(reader) if isinstance(event, TokenDelta | Finished)]
    again = live_stream(LiveEngine(), "r", n=2)
    restore(again, stored(path)["r"].told)
    assert (again.num_tokens, again.num_told, again.told_bytes) == (4, 4, stream.told_bytes)
    assert again.state is State.RUNNING
    reader = WaitingReader(again)
    reader.open()
    key = lambda event: (event.choice, isinstance(event, Finished))  # noqa: E731
    restored = sorted((event for event in read_now(reader) if isinstance(event, TokenDelta | Finished)), key=key)
    assert [text_of([e]) for e in restored] == [text_of([e]) for e in sorted(told, key=key)]
    assert again.transcripts[0].num_tokens == 2
    assert again.ends[0].usage == stream.ends[0].usage


@pytest.mark.parametrize("how", ["finished", "cancelled", "failed"])
async def test_an_end_is_recorded_with_the_whole_answer(path: Path, engine: LiveEngine, how: str):
    async with recording(path) as (disk, journal):
        stream, _ = begun(engine, journal)
        engine.put("r", delta("r", 1, "a"))
        if how == "cancelled":
            stream.cancel()
        else:
            engine.put("r", finished("r") if how == "finished" else failed("r", EngineFailed("It failed.")))
        await journal.flush()
        assert stream.state == how
        assert disk.num_batch_bytes == 0
        assert journal.counts.num_bytes == sum(each.stat().st_size for each in path.parent.iterdir()) > 0
    found = stored(path)["r"].told
    assert (found.state, [one.text for one in deltas_of(found)]) == (how, ["a"])


async def test_the_end_of_the_engine_is_none_of_a_stream_that_outlives_it(path: Path, engine: LiveEngine):
    async with recording(path) as (_, journal):
        stream, reader = begun(engine, journal)
        engine.put("r", delta("r", 1, "a"))
        await journal.flush()
        engine.put("r", RequestFailed("r", Draining("It ends.").info(), is_stopped=True))
        assert text_of(read_now(reader)) == "a"
        with pytest.raises(StreamStopped):
            await reader.receive()
        assert stream.state is State.RUNNING
    assert stored(path)["r"].told.state == "running"


async def test_a_slow_disk_pauses_a_stream_and_grows_no_memory(path: Path, engine: LiveEngine):
    async with recording(path) as (disk, journal):
        disk.may_commit.clear()
        stream, reader = begun(engine, journal)
        for number in range(HIGH_WAITING):
            engine.put("r", delta("r", number + 1, "a"))
        engine.put("r")
        stream.judge()
        assert engine.paused == {"r"}
        disk.may_commit.set()
        await journal.flush()
        assert not stream.is_behind
        assert (
            len(text_of(read_now(reader))) == HIGH_WAITING
        )  # now the reader lags; what it has read is delivered with the next
        assert read_now(reader) == []
        assert engine.paused == set()


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_stream_without_readers_goes_on_when_what_waits_is_told(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch, is_full: bool
):
    monkeypatch.setattr(journaling, "AGAIN_S", 0.0)
    async with recording(path) as (disk, journal):
        stream, reader = begun(engine, journal)
        reader.close()
        await journal.flush()
        disk.may_commit.clear()
        for number in range(HIGH_WAITING + 1):
            engine.put("r", delta("r", number + 1, "a"))
        assert engine.paused == {"r"} and not stream.num_tokens
        disk.is_full = is_full
        disk.may_commit.set()
        await until(lambda: not engine.paused)
        assert (stream.num_tokens, stream.num_waiting) == (HIGH_WAITING + 1, 0)
        assert journal.is_degraded == is_full


async def test_a_full_disk_degrades_and_recovers(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(journaling, "AGAIN_S", 0.01)
    monkeypatch.setattr(journaling, "RETRY_S", 0.01)
    async with recording(path) as (disk, journal):
        kept, reader = begun(engine, journal)
        engine.put("r", delta("r", 1, "a"))
        await journal.flush()
        disk.is_full = True
        engine.put("r", delta("r", 2, "b"))
        await until(lambda: journal.is_degraded)
        await until(lambda: text_of(read_now(reader)) or kept.num_tokens == 2)
        later, _ = begun(engine, journal, "later")
        engine.put("later", delta("later", 1, "x"))
        await until(lambda: later.num_tokens == 1)
        assert not journal.is_durable(kept)
        assert journal.counts.state == 1
        await until(lambda: journal.counts.num_errors >= 6)  # of several attempts, of which the log has one line
        disk.is_full = False
        await until(lambda: not journal.is_degraded and journal.counts.state == 0)
        engine.put("r", delta("r", 3, "c"))
        await journal.flush()
        assert journal.is_durable(kept)
    found = stored(path)
    assert [one.text for one in deltas_of(found["r"].told)] == ["a", "b", "c"]
    assert [one.text for one in deltas_of(found["later"].told)] == ["x"]
    assert [record.levelname for record in caplog.records if record.name == "quire.journal"] == ["ERROR", "WARNING"]


async def test_a_commit_that_hangs_degrades_and_is_not_waited_for(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "BLOCKED_S", 0.02)
    monkeypatch.setattr(journaling, "RETRY_S", 0.01)
    async with recording(path) as (disk, journal):
        disk.may_commit.clear()
        stream, _ = begun(engine, journal)
        engine.put("r", delta("r", 1, "a"))
        await until(lambda: journal.is_degraded)
        assert stream.num_tokens == 1
        engine.put("r", delta("r", 2, "b"))
        await until(lambda: stream.num_tokens == 2)
        disk.may_commit.set()
        monkeypatch.setattr(journaling, "BLOCKED_S", 60.0)
        await until(lambda: journal.counts.state == 0)
        engine.put("r", delta("r", 3, "c"), finished("r"))
        await journal.flush()
    assert [one.text for one in deltas_of(stored(path)["r"].told)] == ["a", "b", "c"]


async def test_attempts_are_recorded_before_the_request_is_submitted(path: Path, engine: LiveEngine):
    async with recording(path) as (_, journal):
        stream, _ = begun(engine, journal)
        await journal.flush()
        journal.note_attempt(stream, 2)
        await journal.flush()
    assert stored(path)["r"].attempts == 2


@pytest.mark.parametrize("told_when", ["never", "while it is full", "when it is written"])
async def test_attempts_outlive_a_full_disk_until_a_token_is_told(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch, told_when: str
):
    monkeypatch.setattr(journaling, "AGAIN_S", 0.0)
    monkeypatch.setattr(journaling, "RETRY_S", 0.0)
    async with recording(path) as (_, journal):
        begun(engine, journal, "old")
        begun(engine, journal, "waiting")
    async with recording(path) as (disk, journal):
        again: dict[str, LiveStream] = {}
        for one in disk.take_stored():
            again[one.head.id] = live_stream(engine, one.head.id)
            restore(again[one.head.id], one.told)
            journal.go_on(again[one.head.id], one.no, one.head, attempts=2)
        journal.are_taken.set()
        journal.note_attempt(again["old"], 3)
        again["old"].submit_again()
        await journal.flush()
        disk.is_full = True
        begun(engine, journal, "new")
        await until(lambda: journal.is_degraded)
        if told_when == "while it is full":
            engine.put("old", delta("old", 1, "a"))
        disk.is_full = False
        await until(lambda: not journal.is_degraded and journal.counts.state == 0)
        if told_when == "when it is written":
            engine.put("old", delta("old", 1, "a"))
        await journal.flush()
    attempts = {name: one.attempts for name, one in stored(path).items()}
    assert attempts == {"old": 3 if told_when == "never" else 0, "waiting": 2, "new": 0}


async def test_a_commit_that_hangs_tells_first_what_waits_longest(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "BLOCKED_S", 0.05)
    async with recording(path) as (disk, journal):
        _, reader = begun(engine, journal)
        await journal.flush()
        disk.may_commit.clear()
        engine.put("r", delta("r", 1, "a"))
        await asyncio.sleep(0)  # its commit begins
        await asyncio.sleep(0)
        engine.put("r", delta("r", 2, "b"))
        await until(lambda: journal.is_degraded)
        await until(lambda: text_of(read_now(reader)) == "ab")
        engine.put("r", delta("r", 3, "c"))
        assert text_of(read_now(reader)) == "c"


async def test_a_stream_that_cannot_take_a_fact_fails_alone(path: Path, engine: LiveEngine):
    async with recording(path) as (_, journal):
        bad, _ = begun(engine, journal)
        _, reader = begun(engine, journal, "other")
        engine.put("r", delta("r", 7, "not the first"))
        engine.put("other", delta("other", 1, "a"))
        await journal.flush()
        assert text_of(read_now(reader)) == "a"
        await until(lambda: bad.state is State.FAILED)


async def test_a_stream_in_memory_alone_hears_of_the_end_of_the_process(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "AGAIN_S", 0.0)
    async with recording(path) as (disk, journal):
        disk.is_full = True
        stream, _ = begun(engine, journal)
        await until(lambda: journal.is_degraded)
        await journal.close()
        engine.put("r", RequestFailed("r", Draining("It ends.").info(), is_stopped=True))
        assert stream.state is State.FAILED


async def test_nobody_waits_for_a_journal_that_was_closed(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "CLOSE_S", 0.01)
    async with recording(path) as (disk, journal):
        disk.may_commit.clear()
        stream, _ = begun(engine, journal)
        waiting = asyncio.create_task(journal.flush())
        await asyncio.sleep(0)
        await journal.close()
        stream.cancel()
        async with asyncio.timeout(60):
            await waiting
            await journal.flush()
        assert not stream.is_over


async def test_a_cancel_is_told_when_it_is_recorded(path: Path, engine: LiveEngine):
    async with recording(path) as (disk, journal):
        stream, _ = begun(engine, journal)
        reader = PollingReader(stream, on_ready=lambda: None)
        reader.open()
        await journal.flush()
        disk.may_commit.clear()
        reader.cancel()
        engine.put("r", finished("r", reason=FinishReason.CANCELLED))
        assert reader.poll() is None
        disk.may_commit.set()
        await journal.flush()
        assert isinstance(reader.poll(), Finished)


async def test_a_journal_is_not_written_anew_without_the_answers_of_an_earlier_process(
    path: Path, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journaling, "AGAIN_S", 0.0)
    monkeypatch.setattr(journaling, "RETRY_S", 0.0)
    async with recording(path) as (_, journal):
        begun(engine, journal, "old")
        await journal.flush()
    async with recording(path) as (disk, journal):
        disk.is_full = True
        begun(engine, journal, "new")
        await until(lambda: journal.is_degraded)
        disk.is_full = False
        (old,) = disk.take_stored()
        again = live_stream(engine, "old")
        await asyncio.sleep(0.05)
        journal.go_on(again, old.no, old.head)
        journal.are_taken.set()
        await until(lambda: not journal.is_degraded and journal.counts.state == 0)
    assert sorted(stored(path)) == ["new", "old"]
