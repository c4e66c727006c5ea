"""What was deleted of a journal is given back to the disk."""

from __future__ import annotations

from pathlib import Path

from app.journal.store import Changes, JournalStore
from tests.journal.test_store import head, told


def test_the_file_becomes_smaller_when_answers_are_forgotten(tmp_path: Path):
    store = JournalStore(tmp_path / "journal")
    store.commit(Changes(begun={no: head(no) for no in range(1, 9)}))
    store.commit(Changes(written={no: told("a" * 50_000) for no in range(1, 9)}))
    store.truncate()
    full = store.num_bytes
    store.commit(Changes(forgotten=set(range(1, 9))))
    store.truncate()
    assert store.num_bytes < full / 4
    store.close()
