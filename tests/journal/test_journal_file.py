"""The file of a journal in a folder where others may write, or where an operator has put other things."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.contract.errors import CannotStart, ConfigurationError
from app.journal.journal_file import connect
from app.journal.store import Changes, JournalStore
from tests.journal.test_store import head, stored, told

EXPECTED = {1: (head(1), told("a"), 0)}

DAMAGED = b"SQLite format 3\0" + b"damage" * 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with an answer."""
    return written(tmp_path / "journal")


def written(path: Path) -> Path:
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}, told={1: told("a")}))
    store.close()
    return path


def plant_readable(place: Path) -> None:
    place.touch()
    place.chmod(0o644)


PLANTED: dict[str, Callable[[Path], object]] = {
    "link": lambda place: place.symlink_to(place.parent / "victim"),
    "dangling link": lambda place: place.symlink_to(place.parent / "nowhere"),
    "pipe": lambda place: os.mkfifo(place, 0o600),
    "folder": lambda place: place.mkdir(mode=0o700),
    "readable file": plant_readable,
}


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", PLANTED)
def test_what_others_may_have_put_beside_it_is_refused_and_stays(kind: str, suffix: str, path: Path):
    """SQLite would believe a log that it finds, write prompts into it, and wait for a pipe."""
    victim, place = path.parent / "victim", Path(f"{path}{suffix}")
    victim.write_bytes(b"precious")
    victim.chmod(0o600)
    PLANTED[kind](place)
    with pytest.raises(ConfigurationError, match=f"journal{suffix} (is a link|belongs)"):
        JournalStore(path)
    assert os.path.lexists(place) and victim.read_bytes() == b"precious"
    remove = place.rmdir if kind == "folder" else place.unlink
    remove()
    assert stored(path) == EXPECTED


def test_a_new_journal_is_not_made_beside_what_others_have_put_there(tmp_path: Path):
    (tmp_path / "journal-wal").touch()
    (tmp_path / "journal-wal").chmod(0o666)
    with pytest.raises(ConfigurationError, match="journal-wal belongs"):
        JournalStore(tmp_path / "journal")
    assert (tmp_path / "journal").stat().st_size == 0


def test_a_log_that_others_make_while_it_is_opened_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    class LateLog(sqlite3.Connection):
        """A connection beside which somebody makes the log just before SQLite would."""

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if "locking_mode" in sql:
                Path(f"{path}-wal").write_bytes(b"log")  # SQLite lets an empty one belong to its owner alone
                Path(f"{path}-wal").chmod(0o666)
            return super().execute(sql, *args)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=LateLog))
    with pytest.raises(ConfigurationError, match="journal-wal belongs"):
        connect(path)


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory"])
def test_no_name_means_anything_but_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert stored(written(Path(name))) == EXPECTED


def test_a_damaged_journal_that_cannot_be_moved_aside_is_said(tmp_path: Path):
    path = written(tmp_path / ("j" * 240))  # beside it there is place for a log, and not for a longer name
    path.write_bytes(DAMAGED)
    with pytest.raises(CannotStart, match="is damaged and cannot be moved aside: File name too long"):
        JournalStore(path)
    assert path.read_bytes() == DAMAGED


@pytest.mark.parametrize("content", [b"-----BEGIN OPENSSH PRIVATE KEY-----", b"#", b"x" * 5000])
def test_a_private_file_of_another_program_stays_where_it_is(content: bytes, tmp_path: Path):
    path = tmp_path / "id_ed25519"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"is a file of another program\. Give --journal another path"):
        JournalStore(path)
    assert path.read_bytes() == content and [*tmp_path.iterdir()] == [path]
