"""A plugin of pytest whose processes share the work of rewriting assertions: `pytest -p tests.shared_rewriting`.

pytest rewrites the assertions of a file when it is first imported, and keeps the result. In a new clone all processes
would do that for the same file at the same time. With this each begins with another part of the files, and finds the
other parts done when it comes to them.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path

import pytest

NAMES = ("conftest.py", "test_*.py")


def pytest_collection(session: pytest.Session) -> None:
    """Import the files of tests; pytest then finds them imported. An error is left to pytest, which tries again."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    number = int(worker["workerid"].removeprefix("gw"))
    for name in names_from(session.config.rootpath, number, worker["workercount"]):
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def names_from(root: Path, worker: int, count: int) -> list[str]:
    """Return the modules of all files of tests, in an order that begins with the part of one worker of `count`."""
    files = sorted(file for name in NAMES for file in (root / "tests").rglob(name))
    begin = len(files) * (worker % count) // count  # one that replaces a crashed worker has a higher number
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in files[begin:] + files[:begin]]
