"""The servers of a round: shared by rows, replaced after a failure, in the last round one for each row."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.isolation import rounds
from benchmarks.isolation.ending import Ending
from benchmarks.isolation.rounds import Model, Servers, one_round, one_row, why
from benchmarks.isolation.row import Row
from benchmarks.isolation.setups import EXPERTS, KEYS, NO_KEY, PLAIN, SLOW_DISK, UNREAD_LOG
from benchmarks.server_process import ServerProcess

HANG_S = 60.0
MODEL = Model(Path("model"), 4096)
ROW = Row(0.01, 0.02, 0.01, 0.02, 0.1, 0.1, 0.1, 0.01, 0, 100, {})


class Started:
    """Stands for `serving`: notes with which options servers are started, and which have been ended."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.options: list[tuple[str, ...]] = []
        self.num_ended = 0

    @contextmanager
    def serving(self, *arguments: str, is_log_read: bool, program: str) -> Iterator[ServerProcess]:
        programs = () if program == "app" else (program,)
        self.models.append(arguments[0])
        self.options.append((*arguments[5:], *(() if is_log_read else ("unread",)), *programs))
        with subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(70)"]) as process:
            yield ServerProcess(9, process)
        self.num_ended += 1


@pytest.fixture
def started(monkeypatch) -> Started:
    found = Started()
    monkeypatch.setattr(rounds, "serving", found.serving)
    return found


async def _row(*_: object) -> tuple[Row, None]:
    return ROW, None


async def _nothing(*_: object) -> None: ...


def test_rows_of_the_same_setup_share_a_server(started: Started):
    servers = Servers(MODEL)
    assert servers.of(KEYS) is servers.of(NO_KEY) is not servers.of(PLAIN)
    servers.of(UNREAD_LOG)
    servers.of(SLOW_DISK)
    servers.close()
    assert started.options == [KEYS.options, (), ("unread",), ("benchmarks.isolation.slow_disk",)]
    assert started.num_ended == 4


def test_a_row_may_want_another_model(started: Started):
    servers = Servers(Model(Path("folder/long"), 4096))
    assert servers.of(PLAIN) is not servers.of(EXPERTS)
    servers.close()
    assert started.models == ["folder/long", "folder/experts"]


@pytest.mark.parametrize(("is_last", "num_servers"), [(False, 1), (True, 3)])
def test_in_the_last_round_each_row_has_a_server_of_its_own(started, monkeypatch, is_last: bool, num_servers: int):
    monkeypatch.setattr(rounds, "measure", _row)
    monkeypatch.setattr(rounds, "until_idle", _nothing)
    monkeypatch.setattr(rounds, "end", lambda *_: Ending(5, 0.5, 1.0))
    rows = one_round(MODEL, ["idle", "brackets", "digits"], 1.0, is_last, Mock())
    row = ROW._replace(kept_bytes=5, back_s=0.5, exit_s=1.0) if is_last else ROW
    assert list(rows.values()) == [row] * 3
    assert len(started.options) == started.num_ended == num_servers


def test_the_next_server_starts_while_the_last_one_ends(started, monkeypatch):
    """Which takes seconds for each of two hundred rows."""
    num_started: list[int] = []

    def wait_for_next(*_: object) -> Ending:
        deadline = time.monotonic() + HANG_S
        while len(started.options) <= started.num_ended + 1 < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        num_started.append(len(started.options))
        return Ending(5, 0.5, 1.0)

    monkeypatch.setattr(rounds, "measure", _row)
    monkeypatch.setattr(rounds, "until_idle", _nothing)
    monkeypatch.setattr(rounds, "end", wait_for_next)
    assert len(one_round(MODEL, ["idle", "brackets", "digits"], 1.0, True, Mock())) == 3
    assert num_started == [2, 3, 3]


def test_a_prepared_server_is_ended_when_no_row_wants_it(started: Started):
    servers = Servers(MODEL)
    servers.of(PLAIN)
    servers.prepare(KEYS)
    servers.close_all()
    assert started.num_ended == 2


def test_a_prepared_server_that_does_not_start_fails_its_row(monkeypatch):
    monkeypatch.setattr(rounds, "serving", Mock(side_effect=RuntimeError("it did not start")))
    servers = Servers(MODEL)
    servers.prepare(PLAIN)
    with pytest.raises(RuntimeError, match="it did not start"):
        servers.of(PLAIN)
    servers.prepare(PLAIN)
    servers.close_all()


def test_a_row_whose_server_dies_is_a_sentence_and_the_next_row_has_another_server(started: Started):
    rows = one_round(MODEL, ["idle", "brackets"], 1.0, False, Mock())
    assert [row.partition(";")[0] for row in rows.values()] == ["the server ended with exit code 70"] * 2
    assert len(started.options) == started.num_ended == 2


def test_a_failure_after_the_attack_keeps_the_figures_of_the_row(started, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("SIGTERM did not end the server within 34 s")

    monkeypatch.setattr(rounds, "measure", _row)
    monkeypatch.setattr(rounds, "until_idle", _nothing)
    monkeypatch.setattr(rounds, "end", fail)
    monkeypatch.setattr(rounds, "why", lambda server, error: str(error))
    row = one_row(Servers(MODEL), 4096, "idle", 1.0, is_last=True)
    assert row == f"SIGTERM did not end the server within 34 s; {ROW}"


@pytest.mark.parametrize(
    ("code", "error", "sentence"),
    [
        (70, ConnectionResetError(), "the server ended with exit code 70"),
        (-6, EOFError(), "the server was ended by signal 6"),
        (None, TimeoutError(), "the server did not answer in time"),
        (None, RuntimeError("a new request (chat) has failed"), "a new request (chat) has failed"),
        (None, ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_a_row_without_figures_says_why(code: int | None, error: Exception, sentence: str):
    assert why(Mock(exit_code=Mock(return_value=code)), error) == sentence
