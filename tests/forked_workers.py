"""A plugin of pytest that runs tests in forked processes: `pytest -p tests.forked_workers --workers 4`.

They are forked when the tests are found: to import 800 files of tests takes seconds of a core and half a gigabyte,
here once for all processes. Each takes one file after the other, in the order in which pytest found them. A process
that ends is replaced, and the test that it had begun has failed. Warnings are not told; they are errors here.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain, groupby
from multiprocessing.connection import Connection, Pipe, wait
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from _pytest._io import TerminalWriter

Indices = list[int]  # of tests in `session.items`, which all processes have


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of processes."""
    parser.addoption("--workers", type=int, default=0, help="processes that run the tests; 0: this one runs them")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in so many processes; what is wrong before there is a test is left to pytest."""
    option = session.config.option
    if not option.workers or option.collectonly or session.testsfailed:
        return None
    Crew(session).run(option.workers)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Crew:
    """The processes, as the one that forks them sees them: it hands files to them, and reports what they report."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        indices = groupby(range(len(session.items)), lambda index: session.items[index].path)
        self.files = deque(list(file) for _, file in indices)
        self.workers: list[Worker] = []
        self.num_forked = 0
        session.config._tmp_path_factory.getbasetemp()  # those of all processes are in it

    def run(self, count: int) -> None:
        """Return when all tests have been reported.

        Raises:
            RuntimeError: a process has failed, and not in a test.
        """
        try:
            for _ in range(min(count, len(self.files))):
                self.fork()
            while self.workers:
                ready = wait([handle for worker in self.workers for handle in (worker.connection, worker.handle)])
                for worker in [one for one in self.workers if one.connection in ready or one.handle in ready]:
                    if not self.listen(worker) or worker.handle in ready:
                        self.end(worker)
        finally:
            for worker in self.workers:
                worker.interrupt()

    def fork(self) -> None:
        """Add a process."""
        self.session.config.get_terminal_writer().flush()  # or both print what waits there
        ours, theirs = Pipe()
        if (pid := os.fork()) == 0:
            for connection in (ours, *(worker.connection for worker in self.workers)):
                connection.close()
            work(self.session, theirs, self.num_forked)
        theirs.close()
        self.workers.append(Worker(pid, ours))
        self.num_forked += 1

    def listen(self, worker: Worker) -> bool:
        """Take what a process has sent; return whether it may send more."""
        try:
            while worker.connection.poll():
                self.take(worker, worker.connection.recv())
        except (EOFError, ConnectionError):
            return False
        return True

    def take(self, worker: Worker, reports: list[dict[str, Any]] | None) -> None:
        """Report a test, or hand a process a file: none of them if the run is to stop, or there is no more."""
        if reports is None:
            is_over = self.session.shouldfail or self.session.shouldstop or not self.files
            file = [] if is_over else self.files.popleft()
            worker.begun += file
            worker.connection.send(file)
            return
        hook, config = self.session.config.hook, self.session.config
        item = self.session.items[worker.begun.popleft()]
        for data in reports:
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=data))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def end(self, worker: Worker) -> None:
        """See off a process; if it had begun a test, that has failed, and another process takes those behind it."""
        self.workers.remove(worker)
        code = worker.join()
        if worker.begun:
            item = self.session.items[worker.begun.popleft()]
            self.session.config.hook.pytest_runtest_logreport(report=failed(item, code))
            if worker.begun:
                self.files.appendleft(list(worker.begun))
            self.fork()
        elif code:
            raise RuntimeError(f"a process of the tests ended with {code} behind its last test")


class Worker:
    """A process that runs tests, as the one that forked it sees it.

    Attributes:
        handle: can be read when the process has ended; its pipe may then be open in a process that it has started.
        begun: the tests of the files that it has and that it has not reported.
    """

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.handle = os.pidfd_open(pid)
        self.begun: deque[int] = deque()

    def join(self) -> int:
        """Wait for its end, and return its exit code."""
        self.connection.close()
        os.close(self.handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def interrupt(self) -> None:
        """End the process as Ctrl-C does; it tears down what it has set up."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)
        self.join()


def failed(item: pytest.Item, code: int) -> pytest.TestReport:
    """Return the report of a test whose process has ended."""
    told = f"{item.nodeid}: its process ended with {code}"
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", told, "call", duration=0.0)


def work(session: pytest.Session, connection: Connection, number: int) -> None:
    """Run tests in this process, which has just been forked, and end it."""
    code = 1
    try:
        try:
            settle(session.config, number)
            session.config.pluginmanager.register(Messages(session.config, connection))
            run(session, connection)
            code = 0
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                traceback.print_exc()
            session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # whatever happens, it never goes on as the process that has forked it


def settle(config: pytest.Config, number: int) -> None:
    """Give this process of its own what it has shared with the one that has forked it."""
    atexit._clear()  # what the other process has made is its own to clean up
    plugins = config.pluginmanager
    for name in filter(plugins.has_plugin, ("terminalreporter", "terminalprogress-plugin")):
        plugins.unregister(name=name)
    plugins.register(SimpleNamespace(_tw=TerminalWriter(sys.stderr)), "terminalreporter")
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folders = config._tmp_path_factory
    folders._basetemp = folders.mktemp(f"worker-{number}", numbered=False)
    folders._exit_stack = ExitStack()
    # A process that `multiprocessing` starts imports the main module, here pytest.
    sys.modules["__main__"] = ModuleType("__main__")


def run(session: pytest.Session, connection: Connection) -> None:
    """Run the files that are handed to this process, until there are no more."""
    item = None
    for following in chain(handed(session, connection), (None,)):
        if item is not None:
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def handed(session: pytest.Session, connection: Connection) -> Iterator[pytest.Item]:
    """Iterate over the tests of the files; the next file is asked for where the one before has no more tests."""
    while True:
        connection.send(None)
        file: Indices = connection.recv()
        if not file:
            return
        yield from (session.items[index] for index in file)


class Messages:
    """Sends the reports of each test to the process that prints; None asks it for a file."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config = config
        self.connection = connection
        self.reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report of the test that runs."""
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        """Send the reports of a test."""
        self.connection.send(self.reports)
        self.reports = []
