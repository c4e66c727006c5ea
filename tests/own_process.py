"""Measures in a process of its own: in that of the tests, what threads of other tests take would count, too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_own_process(function: Callable[..., T], *arguments: object) -> T:
    """Return what a function of a module returns; it and its arguments are pickled."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()
