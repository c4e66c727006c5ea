"""A plugin of pytest that reports each test once: `pytest -p tests.one_report`.

pytest reports what comes before a test, the test, and what comes after it. Most of these three say that nothing
happened, and to send them to the process that prints takes longer than most tests.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test as pytest does; report the test itself, with the time of all, and what did not pass beside it."""
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    first, *others = [report for report in reports if report.when == "call" or not report.passed]
    add_up(first, [report for report in reports if report not in (first, *others)])
    for report in (first, *others):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def add_up(report: pytest.TestReport, silent: list[pytest.TestReport]) -> None:
    """Add the times of reports that are not sent to one that is, also those of `tests.slowest_files`."""
    for name in ("duration", "processor_s", "end_s"):
        for other in silent:
            if hasattr(report, name):
                setattr(report, name, getattr(report, name) + getattr(other, name))
