"""The load of the benchmark `journal`: every token is recorded."""

from pathlib import Path

from app.journal.store import JournalStore
from benchmarks.journal import restoring
from benchmarks.journal.telling import tell
from tests.streaming.kept.recorded_deltas import deltas_of


async def test_every_token_is_recorded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("benchmarks.journal.telling.WARM_UP_S", 0.2)
    told = await tell(tmp_path / "journal", 3, 50, 0.4)
    assert told.num_tokens == 3 * 20
    assert told.thread_s > 0 and told.loop_s > 0 and told.wal_bytes > 0
    assert 0 < told.commit_s(0.5) <= told.commit_s(1.0)
    store = JournalStore(tmp_path / "journal")
    assert [len(deltas_of(stored.told)) for stored in store.take_stored()] == [30] * 3
    store.close()


def test_all_answers_are_restored(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(restoring, "NUM_STREAMS", 5)
    monkeypatch.setattr(restoring, "NUM_TOKENS", 70)
    restoring.write(tmp_path / "journal")
    assert restoring.restore_s(tmp_path / "journal") > 0
