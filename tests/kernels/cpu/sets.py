"""The instruction sets that the native kernels are tested for, each compiled by one process of the tests.

Servers of this machine use the best set; the tests have it as it is shipped. Of the smallest they have the lines,
hardly optimized: that compiles four times as fast. `make test-long` has all others, as they are shipped, too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from app.kernels.cpu import compiling
from app.kernels.cpu.compiling import (
    INSTRUCTION_SETS,
    CannotCompile,
    compile_library,
    find_compiler,
    source_key,
    supported_sets,
)
from app.kernels.cpu.library import NativeLibrary, cache_folder, is_whole, library_file
from tests.cases import long

QUICKLY = "quickly compiled "
QUICK_FLAG = "-Og"
# Most sources include them, and to read them takes half of the time in which a small one is compiled.
HEADERS = ("immintrin.h", "algorithm", "array", "cmath", "cstring", "limits", "type_traits", "utility")


def sets_of_this_machine() -> list[Any]:
    """Return the names of the sets of this machine as they are tested, those of `make test-long` with its mark.

    What `make test` has are both widths of vectors, products with the best set's instructions, and those without them:
    a set between the best and the smallest has few lines of its own. `avx512_bf16` beside AMX has its vectors' lines.
    """
    supported = supported_sets()
    usual = {*supported[:1], *supported[-1:], *(["avx512_bf16"] if "amx" in supported else [])}
    return [as_tested(name) for name in supported if name in usual] + [long(name) for name in supported[1:]]


def as_tested(instruction_set: str) -> str:
    """Return the name under which `make test` has a set: the best one is as it is shipped."""
    return instruction_set if [instruction_set] == supported_sets()[:1] else QUICKLY + instruction_set


@cache
def load_set(name: str) -> NativeLibrary | None:
    """Return the kernels of such a name; None if this machine cannot run or compile them."""
    instruction_set = name.removeprefix(QUICKLY)
    if instruction_set not in supported_sets():
        return None
    try:
        return NativeLibrary(set_file(name), instruction_set)
    except (CannotCompile, OSError):
        return None


def set_file(name: str) -> Path:
    """Return the library file of such a name.

    Raises:
        CannotCompile: it cannot be made.
    """
    if name.startswith(QUICKLY):
        return quick_file(name.removeprefix(QUICKLY))
    with one_compiler():
        return library_file(name)


def quick_file(instruction_set: str, name: str = "", *flags: str) -> Path:
    """Return the library of an instruction set that is hardly optimized, kept beside the others.

    One with more flags has a `name` of its own.

    Raises:
        CannotCompile: it cannot be made.
    """
    with one_compiler():
        file = cache_folder() / f"{name or instruction_set}{QUICK_FLAG}-{source_key()}.so"
        if not is_whole(file):
            with tempfile.TemporaryDirectory(prefix="quire-headers-") as folder:
                header = Path(folder) / "headers.h"
                all_flags = (*compiling.FLAGS, QUICK_FLAG, *flags)
                precompile(header, *all_flags, *INSTRUCTION_SETS[instruction_set][1])
                with patch.object(compiling, "FLAGS", (*all_flags, "-include", str(header))):
                    compile_library(instruction_set, file)
        return file


def precompile(header: Path, *flags: str) -> None:
    """Write the header and what the compiler has read of it; if that fails, each source reads it."""
    header.write_text("".join(f"#include <{name}>\n" for name in HEADERS))
    command = [find_compiler(), *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def lend_sets(home: Path, *instruction_sets: str) -> None:
    """Put sets as `make test` has them where a process finds its kernels whose `XDG_CACHE_HOME` is `home`.

    Raises:
        CannotCompile: one cannot be made.
    """
    folder = home / "quire"
    folder.mkdir(parents=True)
    for instruction_set in set(instruction_sets):
        (folder / f"{instruction_set}-{source_key()}.so").symlink_to(set_file(as_tested(instruction_set)))


@contextmanager
def one_compiler() -> Iterator[None]:
    """Keep other processes of the tests waiting: they then find what this one has compiled."""
    with (Path(tempfile.gettempdir()) / f"quire-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
