"""Loads torch's native libraries while other threads run.

`import torch` holds the interpreter's lock while the system links a library of 400 MB: 0.2 s, and over a second on a
busy machine, in which the server answers no client. A foreign call releases that lock; the import then finds the
library loaded.

Torch's threads (GNU OpenMP) wait for each other by spinning for milliseconds. Beside other programs that takes their
cores from the very threads that are waited for, and a model loads ten times slower: they are told to sleep soon.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

SPIN_COUNT = 1000
"""Rounds of spinning before a thread sleeps, some tens of microseconds; GNU OpenMP's own are 300,000."""
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def begin_preload() -> None:
    """Call `preload_torch` on a thread, while the caller does what needs the interpreter. Never blocks.

    Until that thread is done, who loads another native library waits for it, and the process does not end: libraries
    must not be torn down while they are set up.
    """
    choose_waiting()  # not on the thread: the environment must not change while others read it
    with suppress(RuntimeError):  # no more threads: the engine's does it later
        Thread(target=preload_torch, name="quire-preload", daemon=False).start()


def choose_waiting() -> None:
    """Set GOMP_SPINCOUNT, which torch's libraries read when they are mapped, unless something says how to wait."""
    if not any(name in os.environ for name in _WAITING):
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def preload_torch() -> None:
    """Map and link torch's native libraries. Any thread; blocks, without the interpreter's lock.

    Calls `choose_waiting`. Ignores errors: `import torch` will report them better.
    """
    spec = find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return
    choose_waiting()
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    # The library that depends on all others but not on Python.
    dlopen(os.fsencode(Path(spec.origin).parent / "lib" / "libtorch.so"), os.RTLD_NOW | os.RTLD_LOCAL)
