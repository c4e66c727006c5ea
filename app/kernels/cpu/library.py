"""The native kernels as a library: found, or compiled once, and bound with ctypes.

Calls release the GIL. The library uses the OpenMP threads that torch uses, because torch is loaded first.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p, sizeof
from functools import cache
from pathlib import Path

from torch import Tensor

from app.contract.sampling_params import MAX_LOGPROBS
from app.kernels.cpu import records
from app.kernels.cpu.compiling import (
    SOURCES,
    CannotCompile,
    Watch,
    compile_library,
    find_compiler,
    source_key,
    supported_sets,
)
from app.kernels.cpu.expert_records import Combine, Experts, Route
from app.kernels.cpu.records import SAMPLE_BLOCK, Blocks, Code, Record, Rows
from app.runtime.home_cache import home_cache

_log = logging.getLogger("quire.engine")

# Of a library file: Elf64_Ehdr, whose last eight fields are e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum,
# e_shentsize, e_shnum and e_shstrndx.
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_FIELDS = {
    Code.EMBED: records.Embed, Code.NORM: records.Norm, Code.ADD: records.Add, Code.GATHER: records.Gather,
    Code.QUANTIZE: records.Quantize, Code.GATE: records.Gate, Code.LINEAR: records.Linear,
    Code.ROTATE: records.Rotate, Code.ATTENTION: records.Attention, Code.ATTENTION_MERGE: records.Attention,
    Code.SAMPLE: records.Sample, Code.PACK: records.Pack, Code.SOFTCAP: records.Softcap, Code.ROUTE: Route,
    Code.EXPERTS: Experts, Code.COMBINE: Combine,
}  # fmt: skip
# What both sides must agree on, as `quire_size` has it: the fields of each code, then the rest.
_SIZES = {code.name: sizeof(_FIELDS[code]) for code in Code} | {
    "Record": sizeof(Record),
    "SamplingSettings": sizeof(records.SamplingSettings),
    "Penalties": sizeof(records.Penalties),
    "Blocks": sizeof(Blocks),
    "QuantizedGroup": sizeof(records.QuantizedGroup),
    "SAMPLE_BLOCK": SAMPLE_BLOCK,
    "MAX_LOGPROBS": MAX_LOGPROBS,
}


class NativeLibrary:
    """The kernels compiled for one instruction set. Any thread; a call blocks until it is done."""

    def __init__(self, file: Path, instruction_set: str) -> None:
        self.instruction_set = instruction_set
        self._library = library = ctypes.CDLL(str(file))
        if not library.quire_is_allowed():
            raise OSError(f"the operating system does not allow {instruction_set}")
        library.quire_size.argtypes, library.quire_size.restype = [c_int32], c_int64
        library.quire_replay.argtypes = [POINTER(Record), c_int64, c_int64, c_int64, c_int32, c_void_p]
        library.quire_copy_blocks.argtypes = [POINTER(Blocks), POINTER(Blocks), c_int64, c_int64, c_void_p, c_int64]
        library.quire_replay.restype = library.quire_copy_blocks.restype = None
        for index, (name, size) in enumerate(_SIZES.items()):
            assert library.quire_size(index) == size, f"{name}: record.h and records.py differ"

    def replay(
        self,
        program: ctypes.Array[Record],
        num_tokens: int,
        num_outputs: int,
        num_threads: int,
        ticks: Tensor | None = None,
    ) -> None:
        """Run a list of records; `ticks` [records] (int64) gains the cycles that each of them took."""
        address = None if ticks is None else ticks.data_ptr()
        self._library.quire_replay(program, len(program), num_tokens, num_outputs, num_threads, address)

    def run(self, code: Code, fields: records.Fields, num_rows: int, num_threads: int) -> None:
        """Run a single record over `num_rows` rows."""
        program = (Record * 1)(Record(code, Rows.TOKENS, ctypes.addressof(fields)))
        self.replay(program, num_rows, num_rows, num_threads)

    def copy_blocks(self, source: Tensor, target: Tensor, copies_C2: Tensor) -> None:
        """Copy blocks between caches [L, 2, B, K, G, H] whose blocks are contiguous (see Ops.swap_blocks)."""
        num_bytes = source[0, 0, 0].numel() * source.element_size()
        pairs = copies_C2.contiguous()
        self._library.quire_copy_blocks(
            byref(_blocks(source)), byref(_blocks(target)), len(source), num_bytes, pairs.data_ptr(), len(pairs)
        )


@cache
def load_library(instruction_set: str | None = None) -> NativeLibrary | None:
    """Return the kernels for this machine (its best instruction set, or the one named); None if there are none.

    Compiles them the first time, which takes some seconds; says so in the log. Where the best set cannot be used, the
    next best is; the log says why.
    """
    problem = None
    for name in supported_sets():
        if instruction_set not in (None, name):
            continue
        try:
            library = NativeLibrary(library_file(name), name)
        except (CannotCompile, OSError, AttributeError) as error:  # the last: a library, but not ours
            problem = problem or error  # of the best one
            continue
        if problem is not None:
            _log.warning("the CPU kernels are those for %s: %s", name, problem)
        return library
    if problem is not None:
        _log.warning("no native kernels, the slower torch path is used: %s", problem)
    return None


def prepare_library(report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
    """Compile the kernels for this machine's best instruction set, unless they are there. Any thread; blocks.

    `report` gets a line whenever a file is done. `check` is called several times a second and may raise to give up:
    that ends the compilers and leaves nothing behind. If compiling fails, `report` gets the reason; load_library says
    what follows.
    """
    best = next(iter(supported_sets()), None)
    if best is None:
        return
    shown = 0

    def watch(done: int, total: int) -> None:
        nonlocal shown
        check()
        if done > shown:
            shown = done
            report(f"CPU kernels for {best}: {done} of {total} files compiled")

    try:
        library_file(best, watch)
    except CannotCompile as error:
        report(f"The CPU kernels for {best} cannot be compiled: {error}")


def library_file(name: str, watch: Watch = lambda done, total: None) -> Path:
    """Return the library file of an instruction set: the package's own, the cached one, or one compiled now.

    `watch` follows the compilers, see compile_library.

    Raises:
        CannotCompile: there is none, and it cannot be made.
    """
    file = existing_file(name)
    if file is None:
        find_compiler()
        file = cache_folder() / _file_name(name)
        # A warning, because that is what is seen where nobody has set up a log.
        _log.warning("Compiling the CPU kernels for %s, once; they are kept in %s.", name, file.parent)
        compile_library(name, file, watch)
    return file


def existing_file(name: str) -> Path | None:
    """Return the library file of an instruction set if there is a whole one; the folder need not be writable.

    Raises:
        CannotCompile: see cache_folder.
    """
    packaged = SOURCES / "lib" / _file_name(name)
    if packaged.exists():
        return packaged
    home = home_cache()
    if home is not None and is_whole(home / _file_name(name)):
        return home / _file_name(name)
    cached = cache_folder() / _file_name(name)
    return cached if is_whole(cached) else None


def _file_name(name: str) -> str:
    return f"{name}-{source_key()}.so"


def is_whole(file: Path) -> bool:
    """Return whether a library is there from its beginning to its end; using half of one would kill the process."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header = stream.read(_ELF_HEADER.size)
    except OSError:
        return False
    if len(header) < _ELF_HEADER.size or not header.startswith(b"\x7fELF"):
        return False
    *_, sections_at, _, _, _, _, section_size, num_sections, _ = _ELF_HEADER.unpack(header)
    return bool(size >= sections_at + section_size * num_sections)  # they come last


def cache_folder() -> Path:
    """Return where compiled kernels are kept: `$XDG_CACHE_HOME/quire` or ~/.cache/quire, else a temporary folder.

    Raises:
        CannotCompile: no folder can be written, or none can be trusted: the temporary one belongs to another user.
    """
    home = home_cache()
    with suppress(OSError):
        if home is not None:
            home.mkdir(parents=True, exist_ok=True)
            if os.access(home, os.W_OK):
                return home
    try:
        folder = Path(tempfile.gettempdir()) / f"quire-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        raise CannotCompile(
            f"neither {home or 'a cache folder'} nor a temporary folder can be written; set XDG_CACHE_HOME or TMPDIR "
            "to a folder of yours."
        ) from None
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise CannotCompile(
            f"{folder} belongs to another user, or others may write to it; remove it, or set XDG_CACHE_HOME to a "
            "folder of yours."
        )
    return folder


def _blocks(cache_tensor: Tensor) -> Blocks:
    size = cache_tensor.element_size()
    return Blocks(cache_tensor.data_ptr(), *(size * stride for stride in cache_tensor.stride()[:3]))
