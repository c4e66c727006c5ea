"""The journal's tables: answers, what was told of them, and what may be deleted. One thread at a time, sans asyncio.

    streams   an answer as it was asked for; what was told of it up to a batch, once that is written together
    batches   what was told since, of all answers: one row for each commit

A batch can be deleted when no answer needs it any more. An answer that has ended is written together, and needs none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path

from app.journal.entries import Batch, Delta, Head, JournalDamaged, Told, pack, unpack, unpack_batch
from app.journal.journal_file import (
    APPLICATION_ID,
    VERSION,
    cannot_open,
    connect,
    move_aside,
    num_bytes,
    prepare,
    primary_code,
)

MAX_BATCH_BYTES = 8 * 2**20  # of all batches that an answer still needs
MAX_FREED_PAGES = 2048  # of 4 KiB, each time that the file is cleaned: more would hold a commit up
_MAX_DELETED = 64  # batches a commit: more would hold it up
# In one transaction: a process that is killed meanwhile leaves none of it.
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE streams(
    no INTEGER PRIMARY KEY, head BLOB NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, upto INTEGER NOT NULL DEFAULT 0,
    log BLOB
);
CREATE TABLE batches(no INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE meta(name TEXT PRIMARY KEY, value BLOB NOT NULL);
INSERT INTO meta(name, value) VALUES ('salt', randomblob(16));
PRAGMA application_id={APPLICATION_ID};
PRAGMA user_version={VERSION};
COMMIT;
"""


_Statement = tuple[str, tuple[object, ...]]


@dataclass(slots=True)
class Changes:
    """The changes that one commit writes, by the numbers of the answers.

    Attributes:
        begun: new answers.
        deltas: the deltas that were told since the last commit, in their order, of answers that are in neither `told`
            nor `written`.
        told: what other answers were told since then.
        written: all that was told of answers, which then need no batches: those that have ended, and those that have
            held back too many batches.
        forgotten: the answers that are not kept any longer.
        attempts: how often answers were begun again since a token of them was told.
    """

    begun: dict[int, Head] = field(default_factory=dict)
    deltas: list[tuple[int, Delta]] = field(default_factory=list)
    told: dict[int, Told] = field(default_factory=dict)
    written: dict[int, Told] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class StoredStream:
    """An answer of an earlier process.

    Attributes:
        no: its number.
        head: how it was asked for.
        told: all that was told of it.
        attempts: how often it was begun again since a token of it was told.
    """

    no: int
    head: Head
    told: Told
    attempts: int


class JournalStore:
    """A journal's open file.

    Attributes:
        damaged: where a damaged file was moved, if this one took its place.
        salt: random bytes of this file, for what it says of keys.
        num_batch_bytes: the bytes of the batches that are there.
        next_number: above the numbers of all answers that were there when the file was opened.
    """

    salt: bytes
    num_batch_bytes: int
    next_number: int
    _last_batch: int
    _sizes: dict[int, int]  # of the batches, the oldest first
    _first: dict[int, int]  # the first batch that an answer still needs, the oldest first
    _last: dict[int, int]  # the last batch with something of an answer
    _stored: list[StoredStream]

    def __init__(self, path: Path) -> None:
        """Open the file, or make one.

        Raises:
            ConfigurationError, CannotStart: see `journal_file`.
        """
        self._path = path
        self.damaged: Path | None = None
        self._reset()
        prepare(path)
        try:
            self._connection = self._open()
        except (sqlite3.DatabaseError, JournalDamaged, TypeError, ValueError):  # also values of other kinds than ours
            self.damaged = move_aside(path)
            prepare(path)
            self._connection = self._open()

    def rewrite(self, changes: Changes) -> None:
        """Write changes in the place of all that is there.

        Raises:
            sqlite3.Error: see `commit`.
        """
        self._write(changes, replaces_all=True)

    def commit(self, changes: Changes) -> None:
        """Write changes; all of them are there when it returns, and none if it raises.

        Raises:
            sqlite3.Error: the disk is full, or fails.
        """
        self._write(changes, replaces_all=False)

    def _write(self, changes: Changes, *, replaces_all: bool) -> None:
        in_batch = {no for no, _ in changes.deltas}.union(changes.told)
        number = self._last_batch + bool(in_batch)
        gone = changes.forgotten.union(changes.written)
        deleted = [*self._sizes] if replaces_all else self._unneeded(gone)
        statements = [*_statements(changes, number, deleted)]
        if replaces_all:
            statements.insert(0, ("DELETE FROM streams", ()))
        data = b""
        if in_batch:
            data = pack(Batch(changes.deltas, changes.told), number)
            statements.append(("INSERT INTO batches(no, data) VALUES (?, ?)", (number, data)))
        self._run(statements)
        if replaces_all:
            self._first.clear()
        for no in gone:
            self._first.pop(no, None)
        for one in deleted:
            self.num_batch_bytes -= self._sizes.pop(one)
        if in_batch:
            self._first.update(dict.fromkeys(in_batch - gone - self._first.keys(), number))
            self._add_batch(number, len(data), in_batch)
        for no in changes.forgotten:
            self._last.pop(no, None)

    def _run(self, statements: Sequence[_Statement]) -> None:
        """Run statements in one transaction."""
        run = self._connection.execute
        if len(statements) == 1:  # nearly always: what streams are told; it is a transaction by itself
            run(*statements[0])
            return
        run("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                run(*statement)
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise

    def holders(self, forgotten: Collection[int] = ()) -> list[int]:
        """Return the answers to write together, so that batches can be deleted, those with the oldest batches first.

        They need batches beyond `MAX_BATCH_BYTES`, or some that have something of `forgotten` answers.
        """
        if self.num_batch_bytes <= MAX_BATCH_BYTES and not forgotten:
            return []
        too_old = max((self._last.get(no, 0) for no in forgotten), default=0)
        rest = self.num_batch_bytes
        for number, size in self._sizes.items():
            if rest <= MAX_BATCH_BYTES:
                break
            rest -= size
            too_old = max(number, too_old)
        return [no for no, _ in takewhile(lambda needs: needs[1] <= too_old, self._first.items())]

    @property
    def has_unneeded(self) -> bool:
        """Whether there are batches that a further commit would delete."""
        return bool(self._unneeded())

    @property
    def num_stored(self) -> int:
        """The number of answers of earlier processes that were not taken yet."""
        return len(self._stored)

    def take_stored(self) -> list[StoredStream]:
        """Return the answers of earlier processes, the oldest first; only once."""
        stored, self._stored = self._stored, []
        return stored

    def truncate(self) -> None:
        """Remove from the file, and from the log beside it, what was deleted.

        Raises:
            sqlite3.Error: the disk fails.
        """
        # As a script: a statement without columns is run once, and frees one page each time.
        self._connection.executescript(f"PRAGMA incremental_vacuum({MAX_FREED_PAGES})")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @property
    def num_bytes(self) -> int:
        """The size of the file, with the log beside it."""
        return num_bytes(self._path)

    def close(self) -> None:
        """Close the file; other processes may open it. Idempotent."""
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._open_file()
        except sqlite3.OperationalError as error:
            if primary_code(error) == sqlite3.SQLITE_ERROR:  # its tables are others
                raise
            raise cannot_open(self._path, error) from None

    def _open_file(self) -> sqlite3.Connection:
        connection = connect(self._path)
        try:
            [(version,)] = connection.execute("PRAGMA user_version")
            if not version:
                connection.executescript(_TABLES)
            elif version < VERSION:  # the tables are the same, but an older Quire could not read what is in them now
                connection.execute(f"PRAGMA user_version={VERSION}")
            [(verdict,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                raise JournalDamaged(verdict)
            self._read(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _reset(self) -> None:
        self.salt = b""
        self.num_batch_bytes = self._last_batch = 0
        self._sizes, self._first, self._last, self._stored = {}, {}, {}, []

    def _read(self, connection: sqlite3.Connection) -> None:
        """Read all answers. They are few and small: what is kept has a bound of memory."""
        self._reset()
        [(self.salt,)] = connection.execute("SELECT value FROM meta WHERE name = 'salt' AND typeof(value) = 'blob'")
        streams: dict[int, StoredStream] = {}
        upto: dict[int, int] = {}
        for no, head, attempts, upto[no], log in connection.execute(
            "SELECT no, head, attempts, upto, log FROM streams ORDER BY no"
        ):
            if not isinstance(attempts, int) or (log is None and upto[no]):
                raise JournalDamaged("an answer has other numbers than were written")
            told = Told() if log is None else unpack(log, Told, no, upto[no])
            streams[no] = StoredStream(no, unpack(head, Head, no), told, attempts)
        for number, data in connection.execute("SELECT no, data FROM batches ORDER BY no"):
            batch = unpack_batch(data, number)
            in_batch = {no for no, _ in batch.deltas}.union(batch.told)
            needed = {no for no in in_batch if no in streams and number > upto[no]}
            for no, delta in batch.deltas:
                if no in needed:
                    streams[no].told.deltas.append(delta)
            for no in needed.intersection(batch.told):
                streams[no].told.add(batch.told[no])
            self._first.update(dict.fromkeys(needed - self._first.keys(), number))
            self._add_batch(number, len(data), in_batch)
        self._last_batch = max(self._last_batch, *upto.values(), 0)  # a number that a log covers must not come again
        self.next_number = max(streams, default=0) + 1
        self._stored = [*streams.values()]

    def _add_batch(self, number: int, num_bytes: int, batch: Iterable[int]) -> None:
        self._last_batch = number
        self._sizes[number] = num_bytes
        self.num_batch_bytes += num_bytes
        self._last.update(dict.fromkeys(batch, number))

    def _unneeded(self, gone: Container[int] = ()) -> list[int]:
        """Return the oldest batches before the first one that is needed, without answers that go; not too many."""
        first = next((first for no, first in self._first.items() if no not in gone), self._last_batch + 1)
        return [*islice(takewhile(first.__gt__, self._sizes), _MAX_DELETED)]


def _statements(changes: Changes, number: int, deleted: Iterable[int]) -> Iterator[_Statement]:
    """Yield the statements that make changes, without what was told of each answer; `number` is the last batch's."""
    for no, head in changes.begun.items():
        yield "INSERT INTO streams(no, head) VALUES (?, ?)", (no, pack(head, no))
    for no, told in changes.written.items():
        yield "UPDATE streams SET upto = ?, log = ? WHERE no = ?", (number, pack(told, no, number), no)
    for no, attempts in changes.attempts.items():
        yield "UPDATE streams SET attempts = ? WHERE no = ?", (attempts, no)
    for no in changes.forgotten:
        yield "DELETE FROM streams WHERE no = ?", (no,)
    for batch in deleted:
        yield "DELETE FROM batches WHERE no = ?", (batch,)
