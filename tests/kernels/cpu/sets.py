"""The instruction sets that the native kernels are tested for, each compiled by one process of the tests."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from app.kernels.cpu.compiling import supported_sets
from app.kernels.cpu.library import NativeLibrary, load_library
from tests.cases import long


def sets_of_this_machine() -> list[Any]:
    """Return the sets of this machine; one without a line of its own runs in `make test-long`, if its lines run here.

    `avx512_vnni` multiplies bytes as `avx512_bf16`, and is `avx512` in all else. To compile a set takes half a minute.
    """
    supported = supported_sets()
    has_both = {"avx512_bf16", "avx512"} <= set(supported)
    return [long(name) if name == "avx512_vnni" and has_both else name for name in supported]


@contextmanager
def one_compiler() -> Iterator[None]:
    """Keep other processes of the tests waiting: they then find what this one has compiled."""
    with (Path(tempfile.gettempdir()) / f"quire-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def load_set(name: str) -> NativeLibrary | None:
    """Return the kernels of an instruction set; None if they cannot be compiled."""
    with one_compiler():
        return load_library(name)
