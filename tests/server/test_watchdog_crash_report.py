"""The crash report: its contents, and that writing it always ends."""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator

import pytest

from app import __version__
from app.server.watchdog import write_crash_report

HANG_S = 60


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def fill(end: int) -> int:
    """Write until a pipe is full; return the number of bytes."""
    os.set_blocking(end, False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(end, b"x" * 512)
    os.set_blocking(end, True)
    return written


def test_the_report_is_one_json_line_and_the_stacks_of_all_threads(capfd):
    may_end = threading.Event()

    def wait_somewhere() -> None:
        may_end.wait(HANG_S)

    thread = threading.Thread(target=wait_somewhere)
    thread.start()
    write_crash_report("It hangs.", {"step": 3})
    may_end.set()
    thread.join(HANG_S)
    line, stacks = capfd.readouterr().err.split("\n", 1)
    report = json.loads(line)
    assert (report["message"], report["step"], report["level"]) == ("It hangs.", 3, "critical")
    assert report["versions"]["quire"] == __version__
    assert "in wait_somewhere" in stacks
    assert "in test_the_report_is_one_json_line_and_the_stacks_of_all_threads" in stacks


def test_a_full_pipe_without_a_reader_does_not_block_the_report(pipe):
    reader, writer = pipe
    num_bytes = fill(writer)
    write_crash_report("It hangs.", {}, fd=writer, max_wait_s=0.01)
    os.close(writer)
    with os.fdopen(reader, "rb", closefd=False) as file:
        assert file.read() == b"x" * num_bytes


def test_a_pipe_with_a_reader_gets_the_complete_report(pipe):
    reader, writer = pipe
    fill(writer)
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(reader, "rb", closefd=False) as file:
            found.append(file.read())

    thread = threading.Thread(target=read)
    thread.start()
    write_crash_report("It hangs.", {"note": "long " * 5000}, fd=writer, max_wait_s=HANG_S)
    os.close(writer)
    thread.join(HANG_S)
    line, stacks = found[0].lstrip(b"x").split(b"\n", 1)
    assert json.loads(line)["note"] == "long " * 5000
    assert b"test_a_pipe_with_a_reader_gets_the_complete_report" in stacks


def test_a_full_disk_loses_only_the_stacks(capfd, monkeypatch):
    def no_space() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_space)
    write_crash_report("It hangs.", {})
    assert json.loads(capfd.readouterr().err)["message"] == "It hangs."


def test_without_stderr_nothing_is_raised(pipe):
    os.close(pipe[1])
    write_crash_report("It hangs.", {}, fd=pipe[1])
