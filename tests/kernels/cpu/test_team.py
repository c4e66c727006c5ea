"""Each piece of work is done once: with more threads than cores, in concurrent steps, and after a fork."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.records import Type
from tests.kernels.cpu.linear import ROUNDS, accumulate_rounds, make_activations, make_weight, multiply, pack
from tests.kernels.cpu.native_attention import HEADS, attend

# One row takes panels in pairs, a few rows all tiles of a panel, hundreds of rows single tiles.
NUM_ROWS = (1, 5, 30, 300)


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    loaded = load_library()
    if loaded is None:
        pytest.skip("no native kernels on this machine")
    return loaded


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_every_piece_is_done_once_in_every_round(num_rows: int, library: NativeLibrary):
    (alone,) = accumulate_rounds(library, num_rows, 1)
    once = torch.zeros(num_rows, 352)
    multiply(library, pack(make_weight(330, 70), Type.FLOAT32), make_activations(Type.FLOAT32, num_rows, 70), once)
    assert torch.allclose(alone, ROUNDS * once, rtol=1e-4, atol=1e-4)
    for num_threads in (2, 3, 7):
        for out in accumulate_rounds(library, num_rows, num_threads, range(10)):
            assert torch.equal(out, alone), f"{num_threads} threads"


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_concurrent_steps_share_only_the_helpers(num_rows: int, library: NativeLibrary):
    """One step has the helpers; the others do the helpers' work themselves."""
    (alone,) = accumulate_rounds(library, num_rows, 1)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: accumulate_rounds(library, num_rows, 3, range(10)), range(4))
        assert all(torch.equal(out, alone) for outs in found for out in outs)


def test_attention_has_the_same_bits_for_any_assignment_of_pieces(library: NativeLibrary):
    chunks = [(1500, 2), (3, 1), (700, 40), (1699, 1), (0, 33)]
    alone = attend(library, chunks, HEADS["64"], "bfloat16", num_threads=1)
    for num_threads in (2, 3, 7) * 3:
        assert torch.equal(attend(library, chunks, HEADS["64"], "bfloat16", num_threads=num_threads), alone)


# A forked process has a copy of the helpers' memory, but no helper threads.
FORK = """
import os, sys, torch
from app.kernels.cpu.library import load_library
from tests.kernels.cpu.linear import accumulate_rounds
library = load_library()
(before,) = accumulate_rounds(library, 30, 3)
child = os.fork()
if child == 0:
    (after,) = accumulate_rounds(library, 30, 3)
    os._exit(0 if torch.equal(before, after) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_starts_its_own_helpers(library: NativeLibrary):
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
