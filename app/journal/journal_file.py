"""Opens the file of a journal, which nobody else may read, and moves a damaged one aside."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path

from app.contract.errors import CannotStart, ConfigurationError
from app.runtime.private_folder import check_can_be_made, make_private_folder

APPLICATION_ID = int.from_bytes(b"Quir", "big")
VERSION = 5  # with checksums that cover the numbers of rows, which older versions would take for damage
_HEADER, _ID_AT = b"SQLite format 3\0", 68  # of SQLite's files, and where they have the id of their program
_WAL = "-wal"
_SIDE_FILES = (_WAL, "-shm", "-journal")


class JournalLocked(CannotStart):
    """Another process has the journal."""


def prepare(path: Path) -> None:
    """Make the file, and its folder, if there are none; nobody else may read what we make.

    Raises:
        ConfigurationError: the file, or one beside it, is a link or no file, or belongs to others, or they may read it.
        CannotStart: it cannot be made.
    """
    try:
        make_private_folder(path.parent)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR, 0o600))
        except FileExistsError:
            _check(path)
        _check_side_files(path)  # SQLite believes what is in them, and waits for a pipe
    except OSError as error:
        raise CannotStart(
            f"The journal {path} cannot be made: {error.strerror}. Give --journal another path."
        ) from None


def check(path: Path) -> None:
    """Check that a server could use the file, or make it. No answer is read, and no file made.

    Raises:
        ConfigurationError, CannotStart: it could not.
        sqlite3.DatabaseError: the file is damaged; a server would begin a new one.
    """
    try:
        if os.path.lexists(path):
            _check(path)
            _check_side_files(path)
        else:
            check_can_be_made(path)
    except OSError as error:
        raise CannotStart(
            f"The journal {path} cannot be made: {error.strerror}. Give --journal another path."
        ) from None
    if path.exists():
        try:
            connect(path).close()
        except sqlite3.OperationalError as error:
            raise cannot_open(path, error) from None


def cannot_open(path: Path, error: sqlite3.Error) -> CannotStart:
    """Return the error of a file that is not damaged, but on a disk that is full, or fails, or may not be written."""
    return CannotStart(
        f"The journal {path} cannot be opened: {error}. Make it writable, or give --journal another path."
    )


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that locks the file until it is closed; any thread may use it, one at a time.

    Raises:
        ConfigurationError: the file is of another program, or of a newer Quire; or one beside it is not ours.
        JournalLocked: another process has it.
        sqlite3.DatabaseError: it is damaged.
    """
    # Absolute: some relative names, such as `:memory:`, mean something else to SQLite.
    _check_kind(path)
    connection = sqlite3.connect(path.absolute(), timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive before WAL: so no file of shared memory is made, and the lock is held from the first transaction on.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        _check_owner(path, connection)  # before anything is changed
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        # The system has the pages of a process that is killed; a power cut is not promised (docs/durable.md).
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
        _check_side_files(path)  # where all may write, somebody may have made the log before we did
    except sqlite3.OperationalError as error:
        connection.close()
        if primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise JournalLocked(
                f"The journal {path} is in use by another process. Stop that one, or give --journal another path."
            ) from None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's code of an error, without the byte that says more of it."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # Python's own, such as of a text, have none
    return code & 0xFF


def move_aside(path: Path) -> Path:
    """Rename a damaged journal, with the files beside it, and return its new path.

    Raises:
        CannotStart: the folder may not be written.
    """
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    try:
        path.rename(aside)
        for suffix in _SIDE_FILES:
            with suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        raise CannotStart(
            f"The journal {path} is damaged and cannot be moved aside: {error.strerror}. Make its folder writable, or "
            "give --journal another path."
        ) from None
    return aside


def num_bytes(path: Path) -> int:
    """Return the size of a journal with its write-ahead log."""
    found = 0
    for file in (path, f"{path}{_WAL}"):
        with suppress(OSError):  # a closed journal has no log
            found += os.stat(file).st_size
    return found


def _check_side_files(path: Path) -> None:
    for suffix in _SIDE_FILES:
        with suppress(FileNotFoundError):
            _check(Path(f"{path}{suffix}"))


def _check(file: Path) -> None:
    found = file.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"The journal {file} is a link or no file. Give --journal the path of a file.")
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"The journal {file} belongs to another user, or others may read it. Own it, and allow it to yourself "
            "alone (chmod 600)."
        )


def _check_kind(path: Path) -> None:
    """Check that the file has the beginning of a database, or of a damaged journal: any other stays where it is."""
    try:
        with path.open("rb") as file:
            begin = file.read(_ID_AT + 4)
    except OSError:  # SQLite says why
        return
    is_journal = begin[_ID_AT:] == APPLICATION_ID.to_bytes(4, "big")
    if begin.strip(b"\0") and not begin.startswith(_HEADER) and not is_journal:
        raise ConfigurationError(f"{path} is a file of another program. Give --journal another path.")


def _check_owner(path: Path, connection: sqlite3.Connection) -> None:
    """Check that the file is a journal that this version can read; an empty one becomes such."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    with closing(connection.execute("SELECT count(*) FROM sqlite_schema")) as rows:
        (num_tables,) = rows.fetchone()
    if application != APPLICATION_ID and (application or num_tables):
        raise ConfigurationError(f"{path} is the database of another program. Give --journal another path.")
    if version > VERSION:
        raise ConfigurationError(
            f"The journal {path} is of a newer Quire (version {version}, this one reads {VERSION}). Update Quire, or "
            "give --journal another path."
        )
