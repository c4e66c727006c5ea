"""What this machine can do with all its cores: how fast it reads memory, and how fast it multiplies."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path

import torch

from app.commands.measuring.throughput import computing
from app.kernels.cpu.compiling import FLAGS, INSTRUCTION_SETS, SOURCES, find_compiler
from app.kernels.cpu.library import load_library
from app.runtime.cores import num_cores
from benchmarks.cpu.cells import Probe

MAX_READ_BYTES = 512 << 20  # many times any cache
PROBE_S = 0.15
PROGRAM = Path(__file__).with_name("probe.cpp")
ROUNDS = 2_000_000  # of products in registers: some milliseconds
MATRIX = 4096  # large enough that a product's own work is all that counts


def probe(num_bytes: int) -> Probe:
    """Measure for half a second with one thread per core: with the native kernels or, where there are none, torch.

    Reading is measured on `num_bytes`, at most MAX_READ_BYTES: a model that fits the cache is read from the cache.
    """
    words = torch.ones(min(num_bytes, MAX_READ_BYTES) // 4)
    library, threads = load_library(), num_cores()
    if library is None:
        with computing(threads):
            bf16 = 2 * MATRIX**3 / _fastest(_matrix_product())
            return Probe(
                words.nbytes / _fastest(words.sum), bf16, 2 * bf16, "torch: sum, matrix product; int8 as twice bf16"
            )
    native = _compiled(library.instruction_set)
    read = words.nbytes / _fastest(lambda: native.quire_read(words.data_ptr(), words.nbytes, threads))
    bf16, int8 = (_products(native, is_bytes, threads) for is_bytes in (False, True))
    return Probe(read, bf16, int8, f"native kernels, {library.instruction_set}")


def _compiled(instruction_set: str) -> ctypes.CDLL:
    """Return `probe.cpp`, compiled like the kernels; those are loaded, and so the instructions allowed."""
    flags = [*FLAGS, *INSTRUCTION_SETS[instruction_set][1], "-I", str(SOURCES), "-shared"]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "probe.so")
        subprocess.run([find_compiler(), *flags, str(PROGRAM), "-o", str(made)], check=True)
        native = ctypes.CDLL(str(made))
    native.quire_read.argtypes, native.quire_read.restype = [c_void_p, c_int64, c_int32], c_int64
    native.quire_compute.argtypes, native.quire_compute.restype = [c_int32, c_int64, c_int32], c_int64
    return native


def _products(native: ctypes.CDLL, is_bytes: bool, threads: int) -> float:
    """Return the operations per second of products in registers."""
    done: int = native.quire_compute(is_bytes, ROUNDS, threads)
    return done / _fastest(lambda: native.quire_compute(is_bytes, ROUNDS, threads))


def _matrix_product() -> Callable[[], object]:
    left = torch.ones(MATRIX, MATRIX, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, left, out=out)


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest run: whatever made the others slower was not the work."""
    work()
    times: list[float] = []
    while sum(times) < PROBE_S:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
