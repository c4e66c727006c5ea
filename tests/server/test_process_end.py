"""The end of a process: by itself in order, by force when its time is over."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.server import process_end
from app.server.process_end import SIGNALS, ProcessEnd
from tests.observe.terminals import Terminal

HANG_S = 60


class FakeProcess:
    """The end of this process, which only records the codes that it would end with."""

    def __init__(self, num_open: Callable[[], int], drain_timeout_s: float) -> None:
        self.exits: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.terminal = Terminal()
        self.writer = LogWriter()
        self.console = Console(self.writer.stream(self.terminal), environ={})
        self.code = 0
        self.end = ProcessEnd(
            self.console,
            self.writer,
            drain_timeout_s,
            num_open=num_open,
            exit_code=lambda: self.code,
            exit_process=self.exits.put,
        )


@pytest.fixture
def make_process() -> Iterator[Callable[..., FakeProcess]]:
    """Makes ends of this process, and ends their threads."""
    made: list[FakeProcess] = []

    def make(num_open: Callable[[], int] = lambda: 0, drain_timeout_s: float = 0.0) -> FakeProcess:
        made.append(FakeProcess(num_open, drain_timeout_s))
        return made[-1]

    yield make
    for process in made:
        process.end.close()
        process.writer.close()


@pytest.fixture(autouse=True)
def harmless(monkeypatch):
    """Tests do not wait for seconds, and leave the children and exit functions of their process alone."""
    for name in ("EXIT_S", "THREADS_S"):
        monkeypatch.setattr(process_end, name, 0.01)
    monkeypatch.setattr(process_end, "kill_children", lambda: None)
    monkeypatch.setattr(process_end.atexit, "_run_exitfuncs", lambda: None)


@pytest.mark.parametrize("number", SIGNALS)
def test_after_a_signal_a_process_that_does_not_end_is_ended(make_process, number):
    process = make_process()
    with process.end.capture_signals():
        signal.raise_signal(number)
        assert process.exits.get(timeout=HANG_S) == 0
    assert process.end.signal is number


def test_without_a_signal_nothing_ends(make_process):
    process = make_process()
    with process.end.capture_signals():
        before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
        signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
    assert process.end.signal is None
    assert process.exits.empty()


def test_the_handlers_of_signals_are_restored(make_process):
    before = [signal.getsignal(number) for number in SIGNALS]
    with make_process().end.capture_signals():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    pipe = signal.set_wakeup_fd(-1)
    assert pipe == -1


def test_open_streams_have_the_drain_timeout(make_process):
    """Nothing ends while a stream is open and there is time; when it has ended, the process does."""
    asked, open_streams = threading.Semaphore(0), [object()]

    def num_open() -> int:
        asked.release()
        return len(open_streams)

    process = make_process(num_open, 10 * HANG_S)
    process.end.arm()
    for _ in range(3):
        assert asked.acquire(timeout=HANG_S)
    assert process.exits.empty()
    open_streams.clear()
    assert process.exits.get(timeout=HANG_S) == 0


def test_after_the_drain_timeout_open_streams_do_not_hold_up_the_end(make_process):
    process = make_process(lambda: 1, 0.01)
    process.end.arm()
    assert process.exits.get(timeout=HANG_S) == 0


def test_a_second_signal_ends_the_process_at_once(make_process):
    process = make_process(lambda: 1, 10 * HANG_S)
    process.console.show_status("Finishing")
    with process.end.capture_signals():
        for number in SIGNALS:
            signal.raise_signal(number)
        assert process.exits.get(timeout=HANG_S) == 0
    assert process.terminal.getvalue() == "\rFinishing\x1b[K\r\x1b[K", "the status line is cleared"


def test_the_code_of_a_failure_is_kept(make_process):
    process = make_process()
    process.code = 70
    process.end.arm()
    assert process.exits.get(timeout=HANG_S) == 70


def test_the_end_runs_the_exit_functions_and_writes_the_last_lines(make_process, monkeypatch):
    process, order = make_process(), []
    monkeypatch.setattr(process_end, "EXIT_S", HANG_S)
    monkeypatch.setattr(process_end.atexit, "_run_exitfuncs", lambda: order.append("exit functions"))
    monkeypatch.setattr(process_end, "kill_children", lambda: order.append("children"))
    process.console.print_line("last")
    process.end.finish(75)
    assert process.exits.get(timeout=HANG_S) == 75
    assert order == ["children", "exit functions"]
    assert process.terminal.getvalue() == "last\n"


def test_an_exit_function_that_hangs_does_not_hold_up_the_end(make_process, monkeypatch):
    process, may_return = make_process(lambda: 1, 10 * HANG_S), threading.Event()
    monkeypatch.setattr(process_end.atexit, "_run_exitfuncs", lambda: may_return.wait(HANG_S))
    process.code = 70
    finishing = threading.Thread(target=process.end.finish, args=(70,))
    finishing.start()
    assert process.exits.get(timeout=HANG_S) == 70
    may_return.set()
    finishing.join(HANG_S)


def test_the_end_waits_for_a_thread_but_not_for_ever(make_process, monkeypatch):
    monkeypatch.setattr(process_end, "EXIT_S", HANG_S)
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, args=(HANG_S,))
    thread.start()
    busy = make_process()
    busy.end.finish(0)
    assert busy.exits.get(timeout=HANG_S) == 0 and thread.is_alive()
    monkeypatch.setattr(process_end, "THREADS_S", HANG_S)
    monkeypatch.setattr(process_end, "kill_children", may_end.set)
    waiting = make_process()
    waiting.end.finish(0)
    assert waiting.exits.get(timeout=HANG_S) == 0 and not thread.is_alive()


def test_children_are_killed():
    """In a process of its own: the children of this one belong to other tests."""
    program = (
        "import signal, subprocess, sys\n"
        "from app.server.process_end import kill_children\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "kill_children()\n"
        f"sys.exit(child.wait({HANG_S}) != -signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=HANG_S, env=os.environ).returncode == 0
