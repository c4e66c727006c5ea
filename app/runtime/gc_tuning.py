"""Memory of a process that loads a model: the collector leaves alone what lives for ever, and the heap gives back."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Requests and steps are freed by counting references; cycles are rare, and looking for them costs every newcomer.
THRESHOLDS = (20_000, 10, 10)


@contextmanager
def paused_gc() -> Iterator[None]:
    """Collect nothing until `settle` or the end of the block, and nothing of what there is then ever after.

    What a start makes, stays: looking through it again and again takes a fifth of the time of importing torch, and
    looking through it when the interpreter ends another 0.7 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_after_startup() -> None:
    """Take what lives now for eternal, and collect later ones seldom. Any thread; call it when all is loaded.

    The garbage of the start stays, too: it is about a megabyte, and finding it would hold up the first requests for a
    tenth of a second.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


def give_back() -> None:
    """Give memory that was freed back to the system, where its C library can (glibc). Takes milliseconds. Any thread.

    glibc keeps what a thread has freed for that thread: a prompt of megabytes would leave a hundred of them behind.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
