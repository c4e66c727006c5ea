"""Work that is claimed is done once, whoever does it: with more threads than cores, beside others, and after a fork."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from app.kernels.cpu import records
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.records import Code, Epilogue, Matrix, Record, Rows, Type
from tests.kernels.cpu.test_linear import make_activations, make_weight, multiply, pack
from tests.kernels.cpu.test_native_attention import HEADS, attend

ROUNDS = 40
# One row takes panels in pairs, a few take all tiles of a panel, hundreds are dealt out by tiles.
NUM_ROWS = (1, 5, 30, 300)


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    loaded = load_library()
    if loaded is None:
        pytest.skip("there are no native kernels here")
    return loaded


def added_up(library: NativeLibrary, num_rows: int, num_threads: int, repeats: Sequence[int] = (0,)) -> list[Tensor]:
    """Add the same product to zeros ROUNDS times in one replay; a piece that is done twice, or not, would show."""
    packed, activations = pack(make_weight(330, 70), Type.FLOAT32), make_activations(Type.FLOAT32, num_rows, 70)
    results = []
    for _ in repeats:
        out = torch.zeros(num_rows, 352)
        fields = records.Linear(weight=packed.fields, x=activations.x, out=Matrix.of(out), epilogue=Epilogue.ACCUMULATE)
        record = Record(Code.LINEAR, Rows.TOKENS, ctypes.addressof(fields))
        library.replay((Record * ROUNDS)(*[record] * ROUNDS), num_rows, num_rows, num_threads)
        results.append(out)
    return results


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_every_piece_is_done_once_in_every_round(num_rows: int, library: NativeLibrary):
    (alone,) = added_up(library, num_rows, 1)
    once = torch.zeros(num_rows, 352)
    multiply(library, pack(make_weight(330, 70), Type.FLOAT32), make_activations(Type.FLOAT32, num_rows, 70), once)
    assert torch.allclose(alone, ROUNDS * once, rtol=1e-4, atol=1e-4)
    for num_threads in (2, 3, 7):
        for out in added_up(library, num_rows, num_threads, range(10)):
            assert torch.equal(out, alone), f"{num_threads} threads"


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_steps_at_the_same_time_share_the_helpers_and_nothing_else(num_rows: int, library: NativeLibrary):
    """One of them has the helpers; the others do all the work of their absent ones."""
    (alone,) = added_up(library, num_rows, 1)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: added_up(library, num_rows, 3, range(10)), range(4))
        assert all(torch.equal(out, alone) for outs in found for out in outs)


def test_attention_has_the_same_bits_however_its_pieces_are_claimed(library: NativeLibrary):
    chunks = [(1500, 2), (3, 1), (700, 40), (1699, 1), (0, 33)]
    alone = attend(library, chunks, HEADS["64"], "bfloat16", num_threads=1)
    for num_threads in (2, 3, 7) * 3:
        assert torch.equal(attend(library, chunks, HEADS["64"], "bfloat16", num_threads=num_threads), alone)


# A child process has the memory of the helpers, but not the helpers.
FORK = """
import os, sys, torch
from app.kernels.cpu.library import load_library
from tests.kernels.cpu.test_team import added_up
library = load_library()
(before,) = added_up(library, 30, 3)
child = os.fork()
if child == 0:
    (after,) = added_up(library, 30, 3)
    os._exit(0 if torch.equal(before, after) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_starts_helpers_of_its_own(library: NativeLibrary):
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
