"""The kernels for AMX with its instructions as C++ functions (native/emulated_amx.h): they run where AVX-512 does.

Its products of bytes have the hardware's bits. It is slow, so its figures say nothing.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from app.kernels.cpu.compiling import CannotCompile, supported_sets
from app.kernels.cpu.library import NativeLibrary
from tests.kernels.cpu.sets import quick_file

EMULATED_AMX = "emulated_amx"
_HEADER = Path(__file__).parent / "native" / "emulated_amx.h"
_BASE = "avx512_bf16"  # AMX's set without AMX


@cache
def load_emulated_amx() -> NativeLibrary | None:
    """Return the kernels, compiled once and kept beside the others; None without AVX-512 with bf16 or a compiler."""
    if _BASE not in supported_sets():
        return None
    key = hashlib.blake2b(_HEADER.read_bytes(), digest_size=8).hexdigest()
    try:
        file = quick_file(_BASE, f"{EMULATED_AMX}-{key}", f'-DQUIRE_EMULATED_AMX="{_HEADER}"')
        return NativeLibrary(file, EMULATED_AMX)
    except CannotCompile:
        return None
