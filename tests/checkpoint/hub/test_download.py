"""One file: a part is continued, a whole file is checked, and two downloads of it do not meet."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import io
import multiprocessing
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checkpoint.hub import download as module
from app.checkpoint.hub.download import Expected, download, part_bytes
from app.contract.errors import CannotStart, Unreachable
from tests.cases import examples

CONTENT = bytes(range(256)) * 40
EXPECTED = Expected(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Response(io.BytesIO):
    """A response; it ends with an error if there is one."""

    def __init__(self, content: bytes, status: int = 200, error: Exception | None = None) -> None:
        super().__init__(content)
        self.status, self._error = status, error

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(min(size or 0, 1000))
        if not chunk and self._error is not None:
            raise self._error
        return chunk


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(module, "RETRY_S", 0.0)


def whole(offset: int) -> Response:
    return Response(CONTENT[offset:], 206 if offset else 200)


def failing(error: Exception) -> Callable[[int], Any]:
    """A source that always fails."""

    def open_from(offset: int) -> Any:
        raise error

    return open_from


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", code, "no", Message(), io.BytesIO())


@settings(max_examples=examples(25), deadline=None)
@given(cuts=st.lists(st.integers(1, 4000), max_size=6), has_ranges=st.booleans())
def test_any_sequence_of_broken_connections_gives_the_file(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], has_ranges: bool
):
    target, left = tmp_path_factory.mktemp("d") / "file", [*cuts]

    def open_from(offset: int) -> Response:
        first = offset if has_ranges else 0
        length = left.pop(0) if left else len(CONTENT)
        error = http.client.IncompleteRead(b"") if length % 2 else ConnectionResetError()
        return Response(CONTENT[first : first + length], 206 if first else 200, error if left else None)

    seen: list[int] = []
    download(open_from, target, EXPECTED, seen.append)
    assert target.read_bytes() == CONTENT and seen[-1] == len(CONTENT)
    assert [file.name for file in target.parent.iterdir()] == ["file"]


def test_a_part_that_is_there_is_continued_and_checked(tmp_path: Path):
    (tmp_path / "file.incomplete").write_bytes(CONTENT[:5000])
    assert part_bytes(tmp_path / "file") == 5000
    offsets: list[int] = []
    download(lambda offset: offsets.append(offset) or whole(offset), tmp_path / "file", EXPECTED, lambda done: None)
    assert offsets == [5000] and part_bytes(tmp_path / "file") == len(CONTENT)


@pytest.mark.parametrize("part", [b"?" * 100, b"?" * len(CONTENT)])
def test_a_wrong_part_is_thrown_away(tmp_path: Path, part: bytes):
    (tmp_path / "file.incomplete").write_bytes(part)
    with pytest.raises(CannotStart, match="not the expected file"):
        download(whole, tmp_path / "file", EXPECTED, lambda done: None)
    assert part_bytes(tmp_path / "file") == 0
    download(whole, tmp_path / "file", EXPECTED, lambda done: None)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_is_too_long_is_begun_again(tmp_path: Path):
    (tmp_path / "file.incomplete").write_bytes(CONTENT * 2)
    download(whole, tmp_path / "file", EXPECTED, lambda done: None)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_never_answers_is_given_up_and_the_part_kept(tmp_path: Path):
    attempts: list[int] = []

    def open_from(offset: int) -> Response:
        attempts.append(offset)
        if len(attempts) == 1:
            return Response(CONTENT[:3000])
        raise TimeoutError("timed out")

    with pytest.raises(Unreachable, match=r"file cannot be downloaded: timed out\. What has arrived is kept"):
        download(open_from, tmp_path / "file", EXPECTED, lambda done: None)
    assert len(attempts) == 2 + module.MAX_FAILURES and part_bytes(tmp_path / "file") == 3000


@pytest.mark.parametrize(("code", "attempts"), [(404, 1), (401, 1), (503, 6)])
def test_what_no_retry_can_change_is_not_retried(tmp_path: Path, code: int, attempts: int):
    count: list[int] = []
    source = failing(http_error(code))
    with pytest.raises(Unreachable, match=f"HTTP {code}"):
        download(lambda offset: count.append(offset) or source(offset), tmp_path / "file", EXPECTED, lambda done: None)
    assert len(count) == attempts


def test_a_file_that_is_there_is_not_asked_for(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"anything")
    download(failing(AssertionError()), tmp_path / "file", EXPECTED, lambda done: None)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CannotStart, match=r"Cannot write .*/file/in it: "):
        download(whole, tmp_path / "file" / "in it", EXPECTED, lambda done: None)


def test_a_git_blob_has_another_digest(tmp_path: Path):
    """As `git hash-object` has it."""
    expected = Expected(6, "ce013625030ba8dba906f756967f9e9ca394464a")
    download(lambda offset: Response(b"hello\n"), tmp_path / "file", expected, lambda done: None)
    assert (tmp_path / "file").read_bytes() == b"hello\n"


def test_two_processes_download_a_file_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    opened = context.Value("i", 0)

    def open_from(offset: int) -> Response:
        with opened.get_lock():
            opened.value += 1
        return whole(offset)

    processes = [
        context.Process(target=download, args=(open_from, tmp_path / "file", EXPECTED, lambda done: None))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0] and opened.value == 1
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_waiting_for_another_download_can_be_given_up(tmp_path: Path):
    """One that is stuck in the network keeps the lock until its time is over, also after Ctrl-C."""
    looks: list[int] = []

    def watch(num_bytes: int) -> None:
        looks.append(num_bytes)
        if len(looks) == 3:
            raise KeyboardInterrupt

    part = tmp_path / "file.incomplete"
    with part.open("a+b") as stuck:
        stuck.write(CONTENT[:7])
        stuck.flush()
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with pytest.raises(KeyboardInterrupt):
            download(failing(AssertionError("not its turn")), tmp_path / "file", EXPECTED, watch)
    assert looks == [7, 7, 7] and part.read_bytes() == CONTENT[:7], "the other one's part is left alone"
    download(whole, tmp_path / "file", EXPECTED, lambda num_bytes: None)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_an_attempt_in_which_nothing_arrived_leaves_no_part(tmp_path: Path):
    def open_from(offset: int) -> Any:
        raise urllib.error.HTTPError("http://hub", 404, "Not Found", Message(), None)

    with pytest.raises(Unreachable, match="HTTP 404"):
        download(open_from, tmp_path / "file", EXPECTED, lambda done: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("begin", [b"", CONTENT])
def test_an_answer_that_does_not_end_is_left_and_refused(tmp_path: Path, begin: bytes):
    class Endless(Response):
        num_reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.num_reads += 1
            assert self.num_reads < 20, "nothing ends this"
            return super().read(size) or b"?" * 1000

    with pytest.raises(CannotStart, match="not the expected file"):
        download(lambda offset: Endless(begin), tmp_path / "file", EXPECTED, lambda done: None)
    assert list(tmp_path.iterdir()) == []
