"""Measures in a process of its own: in that of the tests, what threads of other tests take would count, too."""

from __future__ import annotations

import pickle
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import TypeVar

from tests.server.quick_start import ForkedProcess

T = TypeVar("T")
CALL, RESULT = "call", "result"


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Return the result of a function of a module, run in a new process; it and its arguments are pickled."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def within_processor_time(seconds: int, function: Callable[..., T], *arguments: object) -> T:
    """Return the result of such a function, which may take so many seconds of processor time.

    Raises:
        AssertionError: it takes more, and was ended; or it raised an exception, which is on stderr.
    """
    with TemporaryDirectory() as folder:
        (Path(folder) / CALL).write_bytes(pickle.dumps((seconds, function, arguments)))
        process = ForkedProcess(["tests.own_process", folder], stdout=DEVNULL, stderr=2)
        code = process.wait()
        assert code == 0, f"{function.__name__} ended with {code}"
        result: T = pickle.loads((Path(folder) / RESULT).read_bytes())
        return result


def _run(folder: Path) -> None:
    seconds, function, arguments = pickle.loads((folder / CALL).read_bytes())
    limit = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    (folder / RESULT).write_bytes(pickle.dumps(function(*arguments)))


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
