"""The thread that writes the log: order, its bounds, and readers that stop."""

import contextlib
import fcntl
import io
import os
import sys
import termios
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import TextIO

import pytest

from app.observe.log_writer import LogWriter

HANG_S = 60
PIPE_BYTES = 65536  # on Linux


class GatedStream(io.StringIO):
    """Blocks in its first write until `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_waiting = threading.Event()

    def write(self, text: str) -> int:
        self.is_waiting.set()
        assert self.gate.wait(HANG_S)
        return super().write(text)


class Pipe:
    """A pipe whose writing end is a stream."""

    def __init__(self) -> None:
        self.reader, writing = os.pipe()
        self.stream: TextIO = os.fdopen(writing, "w")
        self.size = 0

    def wait_for(self, num_bytes: int) -> None:
        """Wait until more bytes than this are in the pipe."""
        deadline = monotonic() + HANG_S
        while int.from_bytes(fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)), sys.byteorder) <= num_bytes:
            assert monotonic() < deadline
            sleep(0.001)

    def read(self) -> str:
        """Return the text in the pipe."""
        os.set_blocking(self.reader, False)
        parts = []
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.reader, 65536):
                parts.append(part)
        return b"".join(parts).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe; its reader is gone at the end, which lets a writer that waits for it go on."""
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    with contextlib.suppress(OSError):
        pipe.stream.close()


def writer_of(stream: TextIO, max_lines: int = 4096) -> LogWriter:
    """A writer that tells the number of dropped lines on `stream`."""
    writer = LogWriter(max_lines)
    writer.describe_dropped = lambda count: (stream, f"{count} dropped\n")
    return writer


def test_lines_of_all_streams_are_written_in_their_order_on_one_other_thread():
    written: list[tuple[str, str, str]] = []

    class Recorder(io.StringIO):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def write(self, text: str) -> int:
            written.extend((self.name, line, threading.current_thread().name) for line in text.splitlines())
            return len(text)

    one, two = Recorder("one"), Recorder("two")
    writer = LogWriter()
    for number in range(100):
        writer.put(one if number % 3 else two, f"{number}\n")
    writer.close(HANG_S)
    assert written == [("one" if number % 3 else "two", str(number), "quire-log") for number in range(100)]


def test_a_function_is_called_for_its_line_on_the_writing_thread():
    stream, writer = io.StringIO(), LogWriter()
    writer.put(stream, lambda: f"{threading.current_thread().name}\n")
    writer.close(HANG_S)
    assert stream.getvalue() == "quire-log\n"


def test_a_full_queue_drops_until_all_is_written_then_one_line_tells_the_number():
    stream = GatedStream()
    writer = writer_of(stream, max_lines=5)
    for number in range(12):
        writer.put(stream, f"{number}\n")
    assert writer.counts.num_dropped == 7
    stream.gate.set()
    assert writer.flush(HANG_S)
    writer.put(stream, "next\n")
    writer.close(HANG_S)
    assert stream.getvalue().splitlines() == ["0", "1", "2", "3", "4", "7 dropped", "next"]
    assert writer.counts.num_dropped == 7


def test_text_that_is_no_record_is_dropped_without_being_counted():
    stream = GatedStream()
    writer = writer_of(stream, max_lines=2)
    for text in ("a", "b", "c"):
        assert writer.stream(stream).write(text) == 1
    assert writer.counts.num_dropped == 0
    stream.gate.set()
    writer.close(HANG_S)
    assert stream.getvalue() == "ab"


@pytest.mark.parametrize("num_chars", [200, 2049, 5000, 65536])
def test_a_pipe_that_nobody_reads_keeps_room_for_the_number_of_lost_lines(pipe, num_chars):
    """A line of a little more than half a page has a page for itself: 16 of them fill a pipe that is half empty."""
    writer = writer_of(pipe.stream)
    for number in range(1000):
        writer.put(pipe.stream, f"{number:>{num_chars - 1}}\n")
    pipe.wait_for(PIPE_BYTES // 4)
    writer.close(0.0)
    *written, last = pipe.read().splitlines(keepends=True)
    num_lost = 1000 - sum(len(line) == num_chars for line in written)
    assert last == f"{num_lost} dropped\n"


@pytest.mark.parametrize("num_chars", [200, 65536])
def test_nothing_follows_the_number_of_lost_lines(pipe, num_chars):
    """A reader that comes back gets what the pipe has, and no rest of a line that was cut."""
    others = set(threading.enumerate())
    writer = writer_of(pipe.stream)
    (thread,) = set(threading.enumerate()) - others
    for number in range(1000):
        writer.put(pipe.stream, f"{number:>{num_chars - 1}}\n")
    pipe.wait_for(PIPE_BYTES // 4)
    writer.close(0.0)
    text = ""
    while thread.is_alive():
        text += pipe.read()
    *written, last = (text + pipe.read()).splitlines(keepends=True)
    assert last == f"{1000 - sum(len(line) == num_chars for line in written)} dropped\n"


def test_dropped_lines_are_told_once_there_is_room_if_there_was_none_at_the_end(pipe):
    os.set_blocking(pipe.stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):  # others have filled it
        while os.write(pipe.stream.fileno(), b"x" * 4096):
            pass
    os.set_blocking(pipe.stream.fileno(), True)
    others = set(threading.enumerate())
    writer = writer_of(pipe.stream, max_lines=5)
    (thread,) = set(threading.enumerate()) - others
    for number in range(12):
        writer.put(pipe.stream, f"{number}\n")
    writer.close(0.0)
    text, deadline = "", monotonic() + HANG_S
    while thread.is_alive():
        assert monotonic() < deadline, "the thread waits for more lines"
        text += pipe.read()
    assert (text + pipe.read()).lstrip("x").splitlines() == ["0", "1", "2", "3", "4", "7 dropped"]


def test_a_pipe_that_nobody_reads_has_room_for_a_crash_report(pipe):
    writer = writer_of(pipe.stream)
    for _ in range(20):
        writer.put(pipe.stream, "x" * 65536)
    pipe.wait_for(PIPE_BYTES // 4)
    writer.close(0.0)
    os.set_blocking(pipe.stream.fileno(), False)
    assert os.write(pipe.stream.fileno(), b"y" * (PIPE_BYTES // 2)) == PIPE_BYTES // 2


@pytest.mark.parametrize("num_chars", [10, 4096, 4097, 65536, 1_000_000])
def test_a_reader_of_small_pieces_gets_whole_lines_in_their_order(pipe, num_chars):
    lines = [f"{number:>{num_chars}}\n" for number in range(3)]
    writer = writer_of(pipe.stream)
    for line in lines:
        writer.put(pipe.stream, line)
    text = ""
    while len(text) < 3 * (num_chars + 1):
        text += os.read(pipe.reader, 1000).decode()
    writer.close(HANG_S)
    assert text == "".join(lines)


def test_lines_that_wait_when_the_writer_is_closed_are_written():
    stream, others = GatedStream(), set(threading.enumerate())
    writer = writer_of(stream)
    writer.put(stream, "a\n")
    assert stream.is_waiting.wait(HANG_S)
    (thread,) = set(threading.enumerate()) - others
    writer.put(stream, "b\n")
    writer.close(0.0)
    stream.gate.set()
    thread.join(HANG_S)
    assert stream.getvalue() == "a\nb\n"


def test_a_reader_that_comes_back_gets_all_lines_that_were_not_dropped(pipe):
    writer = writer_of(pipe.stream, max_lines=1000)
    for number in range(1200):
        writer.put(pipe.stream, f"{number:>200}\n")
    text = ""
    while "dropped" not in text:
        text += pipe.read()
    writer.close(HANG_S)
    numbers = [int(line) for line in text.splitlines()[:-1]]
    assert numbers == list(range(len(numbers)))
    assert text.splitlines()[-1] == f"{writer.counts.num_dropped} dropped"
    assert len(numbers) + writer.counts.num_dropped == 1200


def test_a_reader_that_is_gone_does_not_stop_other_streams(pipe):
    stream, writer = io.StringIO(), LogWriter()
    os.close(pipe.reader)
    for _ in range(1000):
        writer.put(pipe.stream, "x" * 200)
    writer.put(stream, "seen\n")
    writer.close(HANG_S)
    assert stream.getvalue() == "seen\n"
    pipe.reader = os.open(os.devnull, os.O_RDONLY)


def test_a_closed_writer_drops_lines_and_its_thread_ends():
    before = set(threading.enumerate())
    stream, writer = io.StringIO(), LogWriter()
    (thread,) = set(threading.enumerate()) - before
    writer.put(stream, "a\n")
    writer.close(HANG_S)
    writer.close(HANG_S)
    thread.join(HANG_S)
    writer.put(stream, "b\n")
    assert not thread.is_alive()
    assert stream.getvalue() == "a\n"


def test_the_stream_of_a_writer_has_the_terminal_and_the_descriptor_of_the_other(pipe):
    stream = LogWriter().stream(pipe.stream)
    assert (stream.isatty(), stream.fileno(), stream.encoding) == (False, pipe.stream.fileno(), pipe.stream.encoding)
