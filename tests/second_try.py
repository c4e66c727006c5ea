"""A plugin of pytest that runs what failed once more, alone: `pytest -p tests.second_try`.

A test that passes then is named at the end and counts as passed, so that one test that fails at times does not hide a
good change; it is to be mended with the next change. What shows that the tree is broken is not tried again: a file that
cannot be collected, an error of pytest, more than `MOST` failures.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST = 20


def pytest_configure(config: pytest.Config) -> None:
    """Watch what is reported."""
    config.pluginmanager.register(SecondTry(config))


class SecondTry:
    """The tests that failed in one run of pytest, and what became of them when they ran alone."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.failed: dict[str, None] = {}  # names in the order of their failures; one may fail and have an error
        self.is_collected = True
        self.passed: list[str] = []
        self.outputs: dict[str, str] = {}  # of those that failed twice

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that a file cannot be collected."""
        self.is_collected = self.is_collected and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed, had an error before or after it, or ended its process."""
        if report.failed:
            self.failed[report.nodeid] = None

    @pytest.hookimpl(trylast=True)  # when the other processes have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run what failed, each test in a process of its own; the run succeeds if all of them pass."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self.is_collected or not 0 < len(self.failed) <= MOST:
            return
        for name in self.failed:
            # The name says which test it is, also where its mark is not asked for by default.
            command = [sys.executable, "-m", "pytest", "-q", "-m", "", name]
            tried = subprocess.run(command, cwd=self.config.rootpath, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if tried.returncode == 0:
                self.passed.append(name)
            else:
                self.outputs[name] = tried.stdout.decode(errors="replace")
        if not self.outputs:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what the tests that failed twice said at their second try."""
        for name, output in self.outputs.items():
            terminalreporter.section(f"second try of {name}")
            terminalreporter.write_line(output)

    def pytest_unconfigure(self) -> None:
        """Print below the summary of the run how each second try ended."""
        for name in self.passed:
            print(f"passed at the second try: {name}")
        for name in self.outputs:
            print(f"failed twice: {name}")
        if self.passed and not self.outputs:
            print(f"All tests passed, {len(self.passed)} of them at the second try.")
