"""The one-launch reduction of decode attention under load: counters are reset to zero, and repeats are equal.

The interpreter runs programs one after the other, so only these tests detect races.
"""

from __future__ import annotations

import random

import pytest
import torch

from app.config.devices import MIN_DEPENDENT_CAPABILITY
from app.kernels.triton.attention.attention_configs import attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.grids import WHOLE_TOKENS, AttentionGrids
from app.kernels.triton.attention.piece_attention import piece_attention, piece_scratch_sizes
from app.kernels.triton.attention.work import HEADER, PIECE_WIDTH, MixedWork
from app.kernels.triton.dependent import launches
from tests.gpu.driving import CUDA, noise, unwritten
from tests.kernels.triton.batches import work_tensor

HEADS, KV_HEADS, WIDTH, BLOCK = 32, 8, 128, 16
NUM_BLOCKS = 8192
SCALE = WIDTH**-0.5


class Launcher:
    """A cache, and scratch for batches of up to 256 rows."""

    def __init__(self) -> None:
        self.caches = [noise(NUM_BLOCKS, BLOCK, KV_HEADS, WIDTH) for _ in range(2)]
        self.num_sms = torch.cuda.get_device_properties(CUDA).multi_processor_count
        floats, ints = scratch_sizes(256, HEADS, KV_HEADS, WIDTH, 32)
        self.partials = torch.full((floats,), float("nan"), device=CUDA)
        self.counters = torch.zeros(ints, dtype=torch.int32, device=CUDA)
        self.config = attention_config(
            "decode", WIDTH, torch.bfloat16, torch.bfloat16, torch.cuda.get_device_capability(CUDA)
        )

        self.grids = AttentionGrids(HEADS // KV_HEADS, KV_HEADS, self.num_sms, *[self.config] * 3)

    def run(self, q, tables, positions, *, one_launch=True, num_splits=None):
        rows = torch.arange(len(positions), dtype=torch.int32, device=CUDA)
        out = unwritten(*q.shape)
        decode_attention(
            q, *self.caches, tables, positions, rows, SCALE, None,
            partials=self.partials, counters=self.counters, config=self.config, one_launch=one_launch,
            num_splits=num_splits or self.grids.decode_splits(len(positions), 2 * WHOLE_TOKENS), out=out,
        )  # fmt: skip
        return out


def batch(rng: random.Random):
    """Ragged lengths: padding, short ones, and sometimes a very long one."""
    count = rng.choice((1, 2, 7, 32, 100, 256))
    longest = 8000 if count < 50 else 1500
    kinds = (-1, 0, 15, 16, rng.randrange(1, 100), rng.randrange(1, longest), longest - 1)
    positions = torch.tensor([rng.choice(kinds) for _ in range(count)], dtype=torch.int32, device=CUDA)
    tables = torch.randint(1, NUM_BLOCKS, (count, longest // BLOCK + 1), dtype=torch.int32, device=CUDA)
    return noise(count, HEADS, WIDTH), tables, positions


def test_many_ragged_batches_repeat_bit_for_bit_and_equal_two_launches():
    launcher, rng = Launcher(), random.Random()
    for number in range(400):
        given = batch(rng)
        first = launcher.run(*given)
        for _ in range(3):
            assert torch.equal(launcher.run(*given), first), f"batch {number} differs in a repeat"
        assert not launcher.counters.any(), f"batch {number} left counters behind"
        assert torch.equal(launcher.run(*given, one_launch=False), first), f"batch {number}: two launches differ"
        assert not first.isnan().any() and not first[given[2] < 0].any()


@pytest.mark.parametrize("is_dependent", [False, True])
def test_consecutive_launches_do_not_affect_each_other(is_dependent):
    """As in layers: one after the other on one stream, with the same scratch."""
    launcher, rng = Launcher(), random.Random(0)
    given = [batch(rng) for _ in range(40)]
    wanted = [launcher.run(*each) for each in given]
    torch.cuda.synchronize()
    with launches(is_dependent=is_dependent and torch.cuda.get_device_capability(CUDA) >= MIN_DEPENDENT_CAPABILITY):
        for _ in range(50):
            got = [launcher.run(*each) for each in given]
            assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_pieces_of_many_mixed_steps_repeat_bit_for_bit():
    """Programs take several pieces, and whoever finishes a row's last one merges them: no counter is left behind."""
    launcher, rng = Launcher(), random.Random()
    lists = MixedWork(launcher.grids, 64, 512)
    floats, ints = piece_scratch_sizes(lists.sizes.slots, KV_HEADS, WIDTH, launcher.config.block_m)
    partials = torch.full((floats,), float("nan"), device=CUDA)
    counters = torch.zeros(ints, dtype=torch.int32, device=CUDA)
    for number in range(200):
        counts = [rng.choice((1, 1, 1, 5, 16)) for _ in range(rng.choice((1, 3, 30)))]
        starts = [rng.choice((0, 15, rng.randrange(1, 8000))) for _ in counts]
        made, num_rows = lists.of(starts, counts, sum(counts)), sum(counts)
        work = work_tensor(made, lists.sizes)
        positions = torch.cat([torch.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
        rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        tables = torch.randint(1, NUM_BLOCKS, (len(counts), 8100 // BLOCK + 1), dtype=torch.int32, device=CUDA)
        q, outs = noise(num_rows, HEADS, WIDTH), []
        for _ in range(4):
            outs.append(unwritten(*q.shape))
            piece_attention(
                q, *launcher.caches, tables, positions.int().to(CUDA), rows.int().to(CUDA), work,
                work[HEADER : lists.sizes.first_tile].view(-1, PIECE_WIDTH), SCALE, None, partials=partials,
                counters=counters, num_programs=made.num_programs, config=launcher.config, out=outs[-1],
            )  # fmt: skip
        assert not counters.any() and not outs[0].isnan().any(), f"step {number}"
        assert all(torch.equal(out, outs[0]) for out in outs), f"step {number} differs in a repeat"
