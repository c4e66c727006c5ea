"""A plugin of pytest that prints the files whose tests cost most: `pytest -p tests.slowest_files`.

Files are ordered by their processor time, which depends little on what else the machine does: that of the process that
runs the tests, and of the processes that it started and waited for, but not of those that nobody waits for, as parts of
browsers, and those that `tests.server.forker` forks. What is kept to the end of all tests, as the browser is, has a
line of its own: it is no cost of the file that happens to be the last.

Below the sum stands the processor time of the whole machine since the start. It has the processes in it that nobody
waits for, what finds the tests, and whatever else ran.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

NUM_FILES = 10
KEPT = "what is kept to the end"
STAT = Path("/proc/stat")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in this process, and in those that are forked from it."""
    measured = SlowestFiles()
    config.pluginmanager.register(measured)
    os.register_at_fork(after_in_child=measured.begin)


def used_s() -> float:
    """Return the processor time of this process and of its children that have ended, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def machine_s() -> float:
    """Return the processor time of all processes since the machine has started; 0 where the system does not tell."""
    if not STAT.exists():
        return 0.0
    user, nice, system, _idle, _disk, irq, softirq = map(int, STAT.read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class SlowestFiles:
    """The seconds of the tests of each file, with what is set up before and torn down after them."""

    def __init__(self) -> None:
        self.before_s = used_s()
        self.is_last = False
        self.processor_s: Counter[str] = Counter()
        self.wall_s: Counter[str] = Counter()
        self.end_s = 0.0
        self.machine_s = machine_s()

    def begin(self) -> None:
        """Count from here."""
        self.before_s = used_s()

    def pytest_collection_finish(self) -> None:
        """Begin: to import all test modules is not the first test's cost."""
        self.begin()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> None:
        """Note whether what is torn down belongs to more than this test."""
        self.is_last = nextitem is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the processor time since the last report to this one; it is sent to the process that prints."""
        report = yield
        now_s = used_s()
        spent_s, self.before_s = now_s - self.before_s, now_s
        is_end = self.is_last and call.when == "teardown"
        report.processor_s, report.end_s = (0.0, spent_s) if is_end else (spent_s, 0.0)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report to its file."""
        name = report.nodeid.partition("::")[0]
        self.processor_s[name] += getattr(report, "processor_s", 0.0)  # a process that crashed sends none
        self.end_s += getattr(report, "end_s", 0.0)
        self.wall_s[name] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the files that cost most, the sum of all, and that of the machine."""
        terminalreporter.section(f"slowest of {len(self.processor_s)} files")
        costs = [(name, seconds, self.wall_s[name]) for name, seconds in self.processor_s.most_common(NUM_FILES)]
        costs += [(KEPT, self.end_s, 0.0), ("all files", self.processor_s.total() + self.end_s, self.wall_s.total())]
        for name, processor_s, wall_s in costs:
            terminalreporter.write_line(f"{processor_s:8.1f} s of processor time, {wall_s:8.1f} s of wall time  {name}")
        terminalreporter.write_line(f"{machine_s() - self.machine_s:8.1f} s of processor time of the whole machine")
