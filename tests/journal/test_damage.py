"""Damage that SQLite does not see: values of other kinds, and numbers of rows. No wrong answer, and always a start."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.contract.errors import CannotStart, ConfigurationError
from app.journal.entries import Delta, JournalDamaged, pack, unpack
from app.journal.journal_file import VERSION
from app.journal.store import Changes, JournalStore
from tests.journal.test_store import head, stored, told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with answers that are written together and not, and begun again and not."""
    path = tmp_path / "journal"
    store = JournalStore(path)
    begun = {no: head(no) for no in range(1, 5)}
    store.commit(Changes(begun=begun, told={no: told("text " * 30) for no in begun}, attempts={2: 1}))
    store.commit(Changes(written={1: told("text " * 30, state="finished"), 3: told("text " * 30)}))
    store.commit(Changes(deltas=[(2, Delta(0, (9,), "more"))]))
    store.commit(Changes(told={3: told("more")}))
    store.close()
    return path


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE streams SET no = 9 WHERE no = 1",
        "UPDATE streams SET no = 9 WHERE no = 2",
        "UPDATE streams SET upto = 1 WHERE no = 2",
        "UPDATE streams SET upto = upto + 1 WHERE no = 3",
        "UPDATE streams SET upto = 'x' WHERE no = 3",
        "UPDATE streams SET head = 7",
        "UPDATE streams SET log = 'text' WHERE no = 1",
        "UPDATE streams SET log = CAST(x'ff' AS TEXT) WHERE no = 1",
        "UPDATE streams SET attempts = 'many'",
        "UPDATE batches SET no = no + 100",
        "UPDATE batches SET data = 'text'",
        "UPDATE meta SET value = 'salt'",
        "DELETE FROM meta",
        "DROP TABLE batches",
    ],
)
def test_a_value_that_nobody_wrote_moves_the_journal_aside(statement: str, path: Path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    store = JournalStore(path)
    assert store.damaged is not None and store.take_stored() == []
    store.close()
    assert stored(path) == {}


def test_flipped_bits_give_no_wrong_answer_and_no_failed_start(path: Path):
    whole, expected, rng = path.read_bytes(), stored(path), random.Random(1)
    changed = [index for index, byte in enumerate(whole) if byte and index >= 100]  # in the first 100 is SQLite's head
    folder = path.parent / "flipped"
    for index in rng.sample(changed, 150):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        flipped = bytearray(whole)
        flipped[index] ^= 1 << rng.randrange(8)
        (folder / "journal").write_bytes(flipped)
        (folder / "journal").chmod(0o600)
        store = JournalStore(folder / "journal")
        found = {one.no: (one.head, one.told) for one in store.take_stored()}
        store.close()
        assert (store.damaged is not None and not found) or found == {no: one[:2] for no, one in expected.items()}, (
            index
        )


def test_the_checksum_of_a_record_covers_its_row():
    packed = pack([1, 2], 7, 3)
    assert unpack(packed, list, 7, 3) == [1, 2]
    for place in ((), (7,), (3, 7), (73,), (7, 4)):
        with pytest.raises(JournalDamaged):
            unpack(packed, list, *place)


def test_records_of_the_fourth_version_are_read_and_an_older_quire_leaves_the_file_alone(path: Path):
    """Their checksums do not cover the numbers of rows."""
    expected = stored(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, column, keys in (
            ("streams", "head", "no"),
            ("streams", "log", "no, upto"),
            ("batches", "data", "no"),
        ):
            for packed, *place in connection.execute(f"SELECT {column}, {keys} FROM {table}").fetchall():
                if packed is not None:
                    old = pack(unpack(packed, object, *place))
                    assert old[4:] == packed[4:] and old != packed
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE no = ?", (old, place[0]))
        connection.execute("PRAGMA user_version=4")
    assert stored(path) == expected
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,) > (4,)


@pytest.mark.parametrize(("index", "error"), [(18, CannotStart), (60, ConfigurationError), (68, ConfigurationError)])
def test_a_head_of_a_file_that_another_program_could_have_written_stays(index: int, error: type[Exception], path: Path):
    damaged = bytearray(path.read_bytes())
    damaged[index] ^= 8
    path.write_bytes(damaged)
    with pytest.raises(error):
        JournalStore(path)
    assert path.read_bytes() == damaged
