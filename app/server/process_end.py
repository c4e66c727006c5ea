"""Ends the process in time after a signal, whatever its threads do.

    SIGTERM, SIGINT ──▶ pipe ──▶ thread "quire-exit": notes the signal for the loop, and begins to watch the time
    loop      drain, close the sockets ──▶ `finish`: children, threads, exit functions, last lines ──▶ os._exit
    thread    EXIT_S after the last open stream, or after `drain_timeout` and EXIT_S ──▶ children, last lines
              ──▶ os._exit; a second signal ──▶ the same at once

The interpreter writes a signal to the pipe when it arrives, even while the loop is held up; handlers in Python would
wait for the loop's thread. The process never ends as Python does by itself: that waits for all threads of executors,
and for locks that a thread which hangs may hold.

A thread that keeps the interpreter's lock inside native code for ever stops this thread, too; only SIGKILL ends such a
process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.runtime.clock import monotonic

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_S = 3.5
"""From the end of the last stream to the end of the process by force; with the last lines it is less than 4 s."""
THREADS_S = 1.0
"""How long `finish` waits for threads that are at work."""
_FORCED_CLOSE_S = 0.25  # for a reader of the last lines
_POLL_S = 0.1
_ARM = 0  # in the pipe, beside the numbers of signals


class ProcessEnd:
    """The end of a server's process, by itself or by force.

    `num_open` returns the number of open streams, `exit_code` the code if the process ends now; both are called by the
    thread "quire-exit". `exit_process` is for tests.

    Attributes:
        signal: the signal that ends the server, once there is one.
    """

    def __init__(
        self,
        console: Console,
        writer: LogWriter,
        drain_timeout_s: float,
        *,
        num_open: Callable[[], int],
        exit_code: Callable[[], int],
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self.signal: signal.Signals | None = None
        self._console = console
        self._writer = writer
        self._drain_timeout_s = drain_timeout_s
        self._num_open = num_open
        self._exit_code = exit_code
        self._exit_process = exit_process
        self._reader, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)  # a signal handler must not wait
        threading.Thread(target=self._watch, name="quire-exit", daemon=True).start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Receive SIGINT and SIGTERM in a block. Main thread only, inside a running event loop."""
        handlers = {number: signal.signal(number, lambda number, frame: None) for number in SIGNALS}
        pipe = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def arm(self) -> None:
        """Begin to watch the time, as a signal does. Any thread, idempotent."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipe, bytes([_ARM]))

    def finish(self, code: int) -> None:
        """End the process with `code`, after what a normal exit would do, without its waits. Main thread."""
        self._num_open = lambda: 0  # from now on nobody can read a stream
        self.arm()
        kill_children()
        _wait_for_threads()
        atexit._run_exitfuncs()
        self._writer.close()
        self._exit_process(code)

    def close(self) -> None:
        """End the thread; the process goes on."""
        os.close(self._pipe)

    def _watch(self) -> None:
        limit: float | None = None
        while True:
            if select.select([self._reader], [], [], None if limit is None else _POLL_S)[0]:
                numbers = os.read(self._reader, select.PIPE_BUF)
                if not numbers:
                    os.close(self._reader)
                    return
                if self._note(numbers):
                    break
                if limit is None and (self.signal is not None or _ARM in numbers):
                    limit = monotonic() + self._drain_timeout_s + EXIT_S
            if limit is not None:
                now = monotonic()
                limit = limit if self._num_open() else min(limit, now + EXIT_S)
                if now >= limit:
                    break
        self._end_by_force()

    def _note(self, numbers: bytes) -> bool:
        """Note the signals among `numbers`; return whether one is the second."""
        for number in numbers:
            if number in SIGNALS:
                if self.signal is not None:
                    return True
                self.signal = signal.Signals(number)
        return False

    def _end_by_force(self) -> None:
        try:
            kill_children()
            self._console.clear_status()
            self._writer.close(_FORCED_CLOSE_S)
        finally:
            self._exit_process(self._exit_code())


def kill_children() -> None:
    """Kill the child processes of this process, whatever they do, and the processes of groups that they lead.

    Other children of theirs must end at end of file.
    """
    for thread in Path("/proc/self/task").glob("*/children"):  # not on systems other than Linux
        with contextlib.suppress(OSError):  # the thread or the child has ended
            for child in thread.read_text().split():
                leads_group = os.getpgid(int(child)) == int(child)
                (os.killpg if leads_group else os.kill)(int(child), signal.SIGKILL)


def _wait_for_threads() -> None:
    """Wait for what threads have begun, for `THREADS_S` at most; not for daemons, which never end by themselves."""
    deadline = monotonic() + THREADS_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - monotonic()))
