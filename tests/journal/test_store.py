"""The journal's tables: what was committed is there, also after a kill, and what was forgotten is nowhere."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.errors import CannotStart, ConfigurationError, ErrorInfo
from app.contract.events import Timings, Usage
from app.journal.entries import Columns, Delta, End, Head, Told, pack
from app.journal.journal_file import VERSION, connect, prepare
from app.journal.store import _TABLES, MAX_BATCH_BYTES, Changes, JournalStore
from tests.cases import examples

USAGE, TIMINGS = Usage(3, 5, 1), Timings(0.1, 0.2, 0.3)


def head(no: int) -> Head:
    return Head(f"chat-{no}", b"owner", "/v1/completions", b'{"n": 1}', False, None, 1.5, (7,), (9,), 300.0, b"model")


def told(*texts: str, state: str = "running") -> Told:
    ends = [] if state == "running" else [End(0, "stop", None, USAGE, TIMINGS)]
    return Told([Delta(0, (len(text),), text) for text in texts], ends, state)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


def stored(path: Path) -> dict[int, tuple[Head, Told, int]]:
    """What a journal has of each answer."""
    store = JournalStore(path)
    try:
        assert store.damaged is None
        return {one.no: (one.head, one.told, one.attempts) for one in store.take_stored()}
    finally:
        store.close()


def test_what_was_committed_is_read_again(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1), 2: head(2)}, told={1: told("a"), 2: told("b")}))
    store.commit(Changes(told={1: told("c", "")}, attempts={2: 3}))
    failure = ErrorInfo("engine_error", "It failed.")
    store.commit(Changes(told={2: Told([], [], "failed", failure)}))
    store.close()
    assert stored(path) == {
        1: (head(1), told("a", "c", ""), 0),
        2: (head(2), Told([Delta(0, (1,), "b")], [], "failed", failure), 3),
    }


def test_deltas_are_read_behind_those_that_were_written_before(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1), 2: head(2)}, deltas=[(1, Delta(0, (1,), "a")), (2, Delta(0, (1,), "x"))]))
    store.commit(Changes(deltas=[(1, Delta(0, (1,), "b")), (1, Delta(0, (1,), "c"))], told={2: told("y")}))
    store.commit(Changes(written={2: told("x", "y")}, deltas=[(1, Delta(0, (1,), "d"))]))
    store.close()
    assert {no: one[1] for no, one in stored(path).items()} == {1: told("a", "b", "c", "d"), 2: told("x", "y")}


def test_log_probabilities_keep_their_bits(path: Path):
    delta = Delta(1, (70_000, 5), "\ud7ff\U0001f600", 2, bytes(range(56)))
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}, told={1: Told([delta])}))
    store.close()
    assert stored(path)[1][1].deltas == [delta]


def test_a_commit_that_fails_changes_nothing(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}, told={1: told("a")}))
    for changes in (Changes(told={1: told("never")}, begun={1: head(1)}), Changes(begun={1: head(1)})):
        with pytest.raises(sqlite3.IntegrityError):
            store.commit(changes)
    store.commit(Changes(told={1: told("b")}))
    store.close()
    assert stored(path)[1][1] == told("a", "b")


def test_an_answer_that_is_written_together_needs_no_batches(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1), 2: head(2)}, told={1: told("a"), 2: told("x")}))
    store.commit(Changes(written={1: told("a", "b", state="finished")}, told={2: told("y")}))
    assert store.num_batch_bytes  # of the other answer
    store.commit(Changes(written={2: told("x", "y")}))
    assert store.num_batch_bytes == 0
    store.commit(Changes(told={2: told("z")}))
    store.close()
    assert {no: one[1] for no, one in stored(path).items()} == {
        1: told("a", "b", state="finished"),
        2: told("x", "y", "z"),
    }


def test_an_answer_that_waits_holds_back_no_batches(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1), 2: head(2)}))
    store.commit(Changes(told={2: told("x")}))
    store.commit(Changes(written={2: told("x", state="finished")}))
    assert store.num_batch_bytes == 0
    store.close()


def test_the_oldest_answer_has_to_be_written_when_batches_are_many(path: Path):
    store = JournalStore(path)
    half = "x" * (MAX_BATCH_BYTES // 2)
    store.commit(Changes(begun={1: head(1), 2: head(2)}, told={1: told(half)}))
    assert store.holders() == []
    store.commit(Changes(told={2: told(half)}))
    assert store.holders() == [1]
    store.commit(Changes(written={1: told(half)}))
    assert store.holders() == []
    store.commit(Changes(told={1: told("y"), 2: told(half)}))
    assert store.holders() == [2]
    store.commit(Changes(written={2: told(half, half)}))
    assert store.holders() == []
    assert store.num_batch_bytes < MAX_BATCH_BYTES
    store.close()


def test_deletes_are_spread_over_commits(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}))
    for index in range(100):
        store.commit(Changes(told={1: told(str(index))}))
    store.commit(Changes(written={1: told(state="finished")}))
    assert store.num_batch_bytes
    store.commit(Changes(attempts={1: 0}))
    assert store.num_batch_bytes == 0
    store.close()


def test_what_was_forgotten_is_nowhere(path: Path):
    store = JournalStore(path)
    secret = "a-secret-of-the-answer"
    store.commit(Changes(begun={1: head(1), 2: head(2)}, told={1: told("kept"), 2: told(secret)}))
    assert any(secret.encode() in each.read_bytes() for each in path.parent.iterdir())
    assert store.holders([2]) == [1, 2]
    store.commit(Changes(forgotten={2}, written={1: told("kept")}))
    store.truncate()
    for each in path.parent.iterdir():
        assert secret.encode() not in each.read_bytes()
        assert b"chat-2" not in each.read_bytes()
    store.close()
    assert {no: one[1] for no, one in stored(path).items()} == {1: told("kept")}


def test_nobody_else_may_read_it(path: Path):
    JournalStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_others_may_read_is_refused(path: Path):
    JournalStore(path).close()
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        JournalStore(path)


def test_a_link_is_refused(path: Path, tmp_path: Path):
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="link"):
        JournalStore(path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="--journal"):
        JournalStore(tmp_path / "file" / "journal")


def test_two_processes_cannot_have_it(path: Path):
    store = JournalStore(path)
    with pytest.raises(CannotStart, match="another process"):
        JournalStore(path)
    store.close()
    JournalStore(path).close()


@pytest.mark.parametrize(
    ("pragma", "message"),
    [("application_id=5", "another program"), (f"user_version={VERSION + 1}", "newer Quire")],
)
def test_foreign_files_are_refused_and_stay(path: Path, pragma: str, message: str):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA {pragma}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=message):
        JournalStore(path)
    assert path.read_bytes() == before


def test_damage_of_any_page_is_found_and_moved_aside(path: Path):
    """Zeroed, cut, and with one flipped bit: never a wrong answer, and never no start."""
    store = JournalStore(path)
    store.commit(Changes(begun={no: head(no) for no in range(40)}, told={no: told("text " * 50) for no in range(40)}))
    store.commit(Changes(written={no: told("text " * 50, state="finished") for no in range(20)}))
    store.close()
    whole = path.read_bytes()
    expected = stored(path)
    for page in range(len(whole) // 4096):
        start = page * 4096
        for damaged in (
            whole[:start] + bytes(4096) + whole[start + 4096 :],
            whole[:start],
            whole[: start + 999] + bytes([whole[start + 999] ^ 4]) + whole[start + 1000 :],
        ):
            path.write_bytes(damaged)
            path.chmod(0o600)
            store = JournalStore(path)
            found = {one.no: (one.head, one.told, one.attempts) for one in store.take_stored()}
            assert found == expected or (found == {} and (store.damaged is not None or not damaged)), page
            if store.damaged is not None:
                assert store.damaged.stat().st_size == len(damaged)
            store.close()
            for each in path.parent.iterdir():
                each.unlink()


WRITER = """
import sys
from pathlib import Path
from app.journal.store import Changes, JournalStore
from tests.journal.test_store import head, told

store = JournalStore(Path(sys.argv[1]))
no = number = 0
while True:
    if number % 7 == 0:
        no += 1
        store.commit(Changes(begun={no: head(no)}))
    number += 1
    store.commit(Changes(told={one: told(f"{one}-{number}") for one in range(max(1, no - 2), no + 1)}))
    if number % 7 == 5 and no > 3:
        store.commit(Changes(forgotten={no - 4}, written={no - 3: told("whole", state="finished")}))
    print(number, flush=True)
"""


@pytest.mark.parametrize("num_lines", [1, 20, 57])
def test_a_killed_writer_loses_no_commit_that_it_reported(path: Path, num_lines: int):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = 0
        while last < num_lines:
            last = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        last = int(([str(last), *writer.stdout.read().split()])[-1])
    found = stored(path)
    assert found
    for no, (its_head, its_told, _) in found.items():
        assert its_head == head(no)
        if its_told.state == "running":
            begun = 7 * (no - 1) + 1  # the number of its first commit
            texts = [delta.text for delta in its_told.deltas]
            assert no <= max(found) - 3 or len(texts) >= last - begun + 1
            assert texts == [f"{no}-{number}" for number in range(begun, begun + len(texts))]
        else:
            assert its_told == told("whole", state="finished")


Action = tuple[str, int]
ACTIONS = st.tuples(st.sampled_from(["add", "tell", "write", "end", "forget", "reopen"]), st.integers(1, 4))


@settings(max_examples=examples(30))
@given(st.lists(ACTIONS, max_size=30))
def test_any_order_of_changes_is_read_as_it_was_made(tmp_path_factory: pytest.TempPathFactory, actions: list[Action]):
    path = tmp_path_factory.mktemp("journal") / "journal"
    store, expected, next_no = JournalStore(path), dict[int, Told](), 1
    numbers = dict[int, int]()  # of the four slots
    for step, (action, slot) in enumerate(actions):
        no = numbers.get(slot)
        if action == "reopen":
            store.close()
            assert {no: one[1] for no, one in stored(path).items()} == expected
            store = JournalStore(path)
        elif no is None:
            no = numbers[slot] = next_no
            next_no += 1
            expected[no] = told(str(step))
            store.commit(Changes(begun={no: head(no)}, told={no: told(str(step))}))
        elif action == "tell" and expected[no].state == "running":
            expected[no] = told(*[delta.text for delta in expected[no].deltas], str(step))
            store.commit(Changes(told={no: told(str(step))}))
        elif action == "add" and expected[no].state == "running":
            expected[no] = told(*[delta.text for delta in expected[no].deltas], str(step))
            store.commit(Changes(deltas=[(no, expected[no].deltas[-1])]))
        elif action in ("write", "end"):
            state = "finished" if action == "end" else expected[no].state
            expected[no] = told(*[delta.text for delta in expected[no].deltas], state=state)
            store.commit(Changes(written={no: expected[no]}))
        elif action == "forget":
            del expected[no], numbers[slot]
            store.commit(Changes(forgotten={no}))
    store.close()
    assert {no: one[1] for no, one in stored(path).items()} == expected


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR_READ])
def test_a_disk_that_cannot_be_written_damages_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}))
    store.close()

    def fail(_: Path) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = code
        raise error

    with monkeypatch.context() as patched, pytest.raises(CannotStart, match="cannot be opened: database or disk"):
        patched.setattr("app.journal.store.connect", fail)
        JournalStore(path)
    assert [*stored(path)] == [1]


def test_tables_are_made_together(path: Path):
    """A process may be killed meanwhile: an unfinished journal would be taken for another program's database."""
    prepare(path)
    connection = connect(path)
    for statement in _TABLES.split(";")[:4]:
        connection.execute(statement)
    assert connection.in_transaction
    connection.close()
    assert stored(path) == {}


def test_a_journal_of_the_first_version_is_read_and_becomes_one_of_this(path: Path):
    """It has the deltas of whole answers one by one, and no times of coming."""
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}, written={1: told("a", "b", state="finished")}))
    store.close()
    with sqlite3.connect(path) as connection:
        old = msgspec.msgpack.encode([*msgspec.structs.astuple(head(1))][:-1])
        connection.execute("UPDATE streams SET head = ?", (crc32(old).to_bytes(4, "little") + old,))
        connection.execute("PRAGMA user_version=1")
    connection.close()
    assert stored(path)[1][:2] == (head(1), told("a", "b", state="finished"))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    connection.close()


def test_batches_of_the_second_version_are_read_before_those_of_this(path: Path):
    """They have no deltas beside the rest."""
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1), 2: head(2)}, told={1: told("never read")}))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE batches SET data = ?", (pack({1: told("a"), 2: told("x")}),))
        connection.execute("PRAGMA user_version=2")
    connection.close()
    store = JournalStore(path)
    assert store.holders([2]) == [1, 2]
    store.commit(Changes(deltas=[(1, Delta(0, (1,), "b"))]))
    store.close()
    assert {no: one[1] for no, one in stored(path).items()} == {1: told("a", "b"), 2: told("x")}


def test_a_journal_of_the_third_version_becomes_one_of_this_which_the_third_would_not_read(path: Path):
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}, deltas=[(1, Delta(0, (1,), "a"))]))
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=3")
    assert stored(path)[1][:2] == (head(1), told("a"))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,) > (3,)


def test_what_was_written_together_comes_before_what_was_told_later(path: Path):
    columns = Columns(1, b"idsx", b"ends", b"text", b"ends", 2, b"rows")
    store = JournalStore(path)
    store.commit(Changes(begun={1: head(1)}, written={1: Told(columns=[columns])}))
    store.commit(Changes(told={1: told("a")}))
    store.close()
    found = stored(path)[1][1]
    assert (found.columns, found.deltas) == ([columns], told("a").deltas)
