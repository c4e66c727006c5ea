"""Loads torch's native libraries while others go on.

`import torch` keeps the interpreter for itself while the system links a library of 400 MB: 0.2 s, and over a second on
a busy machine, in which the server answers nobody. A foreign call lets go of it; the import then finds the library
loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> None:
    """Map and link torch's native libraries. Any thread; blocks, without the interpreter's lock.

    Does nothing where that does not work: `import torch` will say better what is wrong.
    """
    spec = find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    # The one that needs all others but knows nothing of Python.
    dlopen(os.fsencode(Path(spec.origin).parent / "lib" / "libtorch.so"), os.RTLD_NOW | os.RTLD_LOCAL)
