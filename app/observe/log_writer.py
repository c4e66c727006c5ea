"""Writes the lines of a server's log and console on a thread of its own: a reader that stops delays nothing else.

    any thread ──put──▶ queue of MAX_LINES ──▶ thread "quire-log" ──▶ stderr, stdout

- The lines of all streams keep their order.
- A full queue drops what comes until everything in it is written; then one line tells how many records were dropped.
  So it does after `close`, too, if there was no room for their number then, and the process is still there.
- Text goes in parts of at most PART_CHARS, and into a pipe only while at most a quarter of it is unread. So a write
  never blocks, and room is left for what must be written without this thread: the watchdog's crash report, and the
  number of lines that nobody has read when the process ends. Nothing follows that number.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import struct
import termios
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from queue import SimpleQueue
from threading import Lock, Thread
from time import sleep
from typing import TextIO, cast

from app.contract.counts import Counts, counter
from app.runtime.clock import monotonic

MAX_LINES = 4096
CLOSE_S = 1.0
"""How long the end of the process waits for a reader of the last lines."""
PART_CHARS = 4096
"""A page of a pipe. However bytes lie in its pages, a quarter of a pipe and one part more leave some of them free."""
_BATCH = 16  # lines that are taken out of the queue at once, if so many wait
_POLL_S = 0.02
_GET_PIPE_SIZE = getattr(fcntl, "F_GETPIPE_SZ", None)  # Linux only

Line = str | Callable[[], str]


@dataclass(slots=True)
class LogCounts(Counts):
    """The counts of the log's records."""

    num_dropped: int = counter(
        "quire_log_records_dropped", "Log records that were dropped because nothing read the log in time."
    )


class LogWriter:
    """A bounded queue of lines, and the daemon thread that writes them. Any thread may call; `put` never blocks.

    Attributes:
        describe_dropped: returns the stream and the line that tell the number of dropped lines; the log sets it.
        counts: the records dropped so far.
    """

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self.describe_dropped: Callable[[int], tuple[TextIO, str]] | None = None
        self.counts = LogCounts()
        self._max_lines = max_lines
        self._queue: SimpleQueue[tuple[TextIO, Line] | None] = SimpleQueue()
        self._lock = Lock()  # of the counts; never held while something is written
        self._num_put = self._num_written = 0
        self._num_untold = 0  # dropped records that no line has told yet
        self._is_full = self._is_closed = False
        self._is_cut = False  # the last part ends within a line
        self._turn = Lock()  # of what is written: a part with its count, or the number of lost lines
        self._is_over = False  # that number is written, and nothing follows it
        Thread(target=self._run, name="quire-log", daemon=True).start()

    def put(self, stream: TextIO, line: Line, *, is_record: bool = True) -> None:
        """Write `line`, with its line end, to `stream` soon; a function is called for its text on the writing thread.

        If the queue is full the line is dropped, and counted if it `is_record`.
        """
        with self._lock:
            self._is_full = self._is_full or self._num_put - self._num_written >= self._max_lines
            if self._is_full:
                self.counts.num_dropped += is_record
                self._num_untold += is_record
            elif not self._is_closed:
                self._put(stream, line)

    def stream(self, stream: TextIO) -> TextIO:
        """Return a stream whose text goes through this writer to `stream`."""
        return cast("TextIO", _QueuedStream(self, stream))

    def flush(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait until all that was put before is written; return False if it is not within `timeout_s`."""
        deadline, target = monotonic() + timeout_s, self._num_put
        while self._num_written < target:
            if monotonic() >= deadline:
                return False
            sleep(_POLL_S / 10)
        return True

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write the last lines, and end the thread. Lines put later are dropped. Idempotent.

        If nobody reads the lines within `timeout_s`, only their number is written, as far as that does not block.
        """
        is_written = self.flush(timeout_s)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.put(None)
        if not is_written:
            self._tell_lost()

    def _tell_lost(self) -> None:
        """Write the number of lines that are not written; none of them follows it. Does not block."""
        has_turn = self._turn.acquire(timeout=_POLL_S)  # a stopped terminal holds the other thread in its write
        try:
            with self._lock:
                count = self._num_untold + self._num_put - self._num_written
            if count and self.describe_dropped is not None:
                stream, line = self.describe_dropped(count)
                begin = "\n" if self._is_cut else ""
                with contextlib.suppress(OSError, ValueError):
                    if select.select([], [stream], [], 0.0)[1]:
                        os.write(stream.fileno(), f"{begin}{line}".encode())
                        self._is_over = True
        finally:
            if has_turn:
                self._turn.release()

    def _put(self, stream: TextIO, line: Line) -> None:
        """Queue a line. Under the lock."""
        self._num_put += 1
        self._queue.put((stream, line))

    def _run(self) -> None:
        is_open = True
        while is_open or not self._queue.empty():  # behind the end comes at most the number of dropped lines
            entries = [self._queue.get()]
            while len(entries) < _BATCH and not self._queue.empty():
                entries.append(self._queue.get())
            is_open = is_open and None not in entries
            for stream, group in groupby(filter(None, entries), key=itemgetter(0)):
                for text, num_lines in _parts(line if isinstance(line, str) else line() for _, line in group):
                    self._write(stream, text, num_lines)

    def _write(self, stream: TextIO, text: str, num_lines: int) -> None:
        """Write a part as soon as there is room. Errors are ignored: there is no place left to report them."""
        with contextlib.suppress(OSError, ValueError):
            self._wait_for_room(stream)
        with self._turn:
            if self._is_over:
                return
            with contextlib.suppress(OSError, ValueError):
                stream.write(text)
                stream.flush()
            self._is_cut = not num_lines
            self._note_written(num_lines)

    def _wait_for_room(self, stream: TextIO) -> None:
        """Wait until at most a quarter of a pipe is unread, or nobody will read it. Other files have room at once."""
        try:
            fd = stream.fileno()
            limit = 0 if _GET_PIPE_SIZE is None else fcntl.fcntl(fd, _GET_PIPE_SIZE) // 4
        except OSError:  # no pipe
            return
        poller = select.poll()
        poller.register(fd, 0)  # for errors only, of which one is that the reader is gone
        while limit and not self._is_over and _num_unread(fd) > limit and not poller.poll(_POLL_S * 1000):
            pass

    def _note_written(self, count: int) -> None:
        with self._lock:
            self._num_written += count
            if self._is_full and self._num_written == self._num_put:
                self._is_full = False
                count, self._num_untold = self._num_untold, 0
                if count and self.describe_dropped is not None:
                    self._put(*self.describe_dropped(count))


class _QueuedStream(io.TextIOBase):
    """A stream that never blocks: its text goes through a LogWriter."""

    def __init__(self, writer: LogWriter, stream: TextIO) -> None:
        super().__init__()
        self._writer = writer
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def write(self, text: str) -> int:
        self._writer.put(self._stream, text, is_record=False)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def _parts(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Join lines that fit into one part, and cut longer ones; yield each part, and how many lines end with it."""
    text, num_lines = "", 0
    for line in lines:
        if text and len(text) + len(line) > PART_CHARS:
            yield text, num_lines
            text, num_lines = "", 0
        begin = 0
        while len(line) - begin > PART_CHARS:
            yield line[begin : begin + PART_CHARS], 0
            begin += PART_CHARS
        text += line[begin:]
        num_lines += 1
    yield text, num_lines


def _num_unread(pipe: int) -> int:
    """Return the number of bytes in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)
