"""Measures in a process of its own: in that of the tests, what threads of other tests take would count, too."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Return the result of a function of a module, run in a process of its own; it and its arguments are pickled."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def within_processor_time(seconds: int, function: Callable[..., T], *arguments: object) -> T:
    """Return the result of a function of a module that may take so many seconds of processor time.

    Raises:
        BrokenProcessPool: it takes more, and was ended.
    """
    return in_own_process(_limited, seconds, function, *arguments)


def _limited(seconds: int, function: Callable[..., T], *arguments: object) -> T:
    limit = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    return function(*arguments)
