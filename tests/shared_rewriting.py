"""A plugin of pytest that shares the work of rewriting assertions: `pytest -p tests.shared_rewriting`.

pytest rewrites the assertions of a file when it is first imported, and keeps the result. In a new clone this takes as
long as all else that finds the tests. With this another process begins at the other end of the files; pytest finds
done what it has done, and ends it when the tests are found.
"""

from __future__ import annotations

import importlib
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL

NAMES = ("conftest.py", "test_*.py")
FEW = 20  # of so many files pytest is done as soon as another process


def pytest_collection(session: pytest.Session) -> None:
    """Begin the other process, if many files are to be rewritten."""
    names = new_modules(session.config.rootpath)
    if len(names) <= FEW:
        return
    if (pid := os.fork()) == 0:
        try:
            import_all(names[::-1])
        finally:
            os._exit(0)
    session.config.pluginmanager.register(Helper(pid))


def new_modules(root: Path) -> list[str]:
    """Return the modules of the files of tests that were never rewritten, in the order in which pytest imports them."""
    files = sorted(file for name in NAMES for file in (root / "tests").rglob(name))
    new = [file for file in files if not (file.parent / "__pycache__" / f"{file.stem}{PYC_TAIL}").exists()]
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in new]


def import_all(names: list[str]) -> None:
    """Import modules; an error is left to pytest, which finds it again."""
    for name in names:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


class Helper:
    """The other process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pytest_collection_finish(self) -> None:
        """End it: all files are rewritten."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
