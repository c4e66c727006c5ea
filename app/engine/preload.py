"""Loads torch's native libraries while other threads run.

`import torch` holds the interpreter's lock while the system links a library of 400 MB: 0.2 s, and over a second on a
busy machine, in which the server answers no client. A foreign call releases that lock; the import then finds the
library loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> None:
    """Map and link torch's native libraries. Any thread; blocks, without the interpreter's lock.

    Ignores errors: `import torch` will report them better.
    """
    spec = find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    # The library that depends on all others but not on Python.
    dlopen(os.fsencode(Path(spec.origin).parent / "lib" / "libtorch.so"), os.RTLD_NOW | os.RTLD_LOCAL)
