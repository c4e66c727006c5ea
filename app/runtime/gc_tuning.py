"""Tuning of the garbage collector and of the C heap for a process that loads a model."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

# Requests and steps are freed by reference counting. Cycles are rare, and each collection delays new requests.
THRESHOLDS = (20_000, 10, 10)


@contextmanager
def paused_gc() -> Iterator[None]:
    """Collect nothing until `freeze_after_startup` or the end of the block, and never the objects made until then.

    Objects made at startup live as long as the process. Collections would take a fifth of the time of importing torch,
    and another 0.7 s when the interpreter ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect nothing in the block, on any thread."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze_after_startup() -> None:
    """Exclude all present objects from collections, and collect later ones rarely. Any thread; call it after loading.

    The garbage of the startup (about a megabyte) is kept: a collection would delay the first requests by 0.1 s.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


def trim_heap() -> None:
    """Return freed memory to the system, if the C library can (glibc). Takes milliseconds. Any thread.

    glibc keeps memory that a thread has freed for that thread: about 100 MB after a prompt of some megabytes.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache  # each `CDLL` leaves a class, which is in a cycle: 3.4 kB until the next collection, hours later
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
