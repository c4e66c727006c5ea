"""What this machine can do with all its cores: how fast it reads memory, and how fast it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from app.commands.measuring.throughput import computing
from app.kernels.cpu.library import NativeLibrary, load_library
from app.runtime.cores import num_cores
from benchmarks.cpu.cells import Probe

MAX_READ_BYTES = 512 << 20  # many times any cache
PROBE_S = 0.15
BF16_PAIRS, BYTES = 0, 2  # kinds of NativeLibrary.compute
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
    read = words.nbytes / _fastest(lambda: library.read(words, threads))
    bf16, int8 = (_compute(library, kind, threads) for kind in (BF16_PAIRS, BYTES))
    return Probe(read, bf16, int8, f"native kernels, {library.instruction_set}")


def _compute(library: NativeLibrary, kind: int, threads: int) -> float:
    """Return the operations per second of products in registers."""
    done = library.compute(kind, ROUNDS, threads)
    return done / _fastest(lambda: library.compute(kind, ROUNDS, threads))


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
