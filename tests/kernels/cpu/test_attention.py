"""The bits of a row of attention depend only on its query, its keys, its values and its position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.kernels.cpu.attention import QUERY_TILE, TILE
from app.kernels.cpu.torch_ops import TorchOps
from tests.cases import examples
from tests.kernels.batches import Heads, make_step, noise

LONGEST = 1500
HEADS = [Heads(2, 1, 64), Heads(3, 3, 24), Heads(6, 2, 80), Heads(7, 1, 16), Heads(4, 4, 128)]


def rows_of(
    heads: Heads,
    chunks: list[tuple[int, int]],
    *,
    block_size: int = 16,
    window: int | None = None,
    softcap: float | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """Attention [new tokens, N, H] of the first sequence, whose keys, values and queries are always the same."""
    step = make_step(chunks, heads, block_size=block_size, dtype=dtype)
    start, new = chunks[0]
    keys, values = step.caches()
    shape = (LONGEST, heads.num_kv_heads, heads.head_dim)
    for seed, cache in enumerate((keys, values)):
        own = noise(*shape, dtype=dtype, seed=seed)[: start + new]
        table = step.batch.block_tables_SB[1].long()
        at = torch.arange(start + new)
        cache[table[at // block_size], at % block_size] = own
    q_TNH = noise(step.num_rows, heads.num_heads, heads.head_dim, dtype=dtype, seed=9)
    q_TNH[:new] = noise(LONGEST, heads.num_heads, heads.head_dim, dtype=dtype, seed=3)[start : start + new]
    out = torch.empty_like(q_TNH)
    ops = TorchOps()
    ops.begin_step(step.batch)
    ops.paged_attention(q_TNH, keys, values, heads.head_dim**-0.5, window, softcap, out=out)
    return out[:new]


@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_row_has_the_same_bits_in_every_chunk_batch_and_block_size(data: st.DataObject):
    heads = data.draw(st.sampled_from(HEADS), label="heads")
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]), label="type")
    window = data.draw(st.sampled_from([None, 1, 100, 700]), label="window")
    softcap = data.draw(st.sampled_from([None, 1.5]), label="cap of scores")
    edges = [TILE - 1, TILE, TILE + 1, 4 * TILE, LONGEST - 1]
    position = data.draw(st.sampled_from(edges) | st.integers(0, LONGEST - 1), label="position")
    before = data.draw(st.integers(0, min(position, 2 * QUERY_TILE)), label="rows before it in its chunk")
    after = data.draw(st.integers(0, min(LONGEST - 1 - position, 40)), label="rows after it in its chunk")
    others = data.draw(
        st.lists(st.tuples(st.integers(0, LONGEST), st.sampled_from([1, 1, 1, 9])), max_size=6), label="others"
    )
    block_size = data.draw(st.sampled_from([8, 16, 32, 64, 128]), label="block size")
    chunk = (position - before, before + 1 + after)
    how = {"window": window, "softcap": softcap, "dtype": dtype}
    (alone,) = rows_of(heads, [(position, 1)], **how)
    rows = rows_of(heads, [chunk, *others], block_size=block_size, **how)
    assert torch.equal(rows[before], alone)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_long_contexts_are_summed_tile_by_tile(heads: Heads):
    """Positions decoded beside a much longer sequence have the bits of one complete prefill."""
    prefill = rows_of(heads, [(0, 1100)], dtype=torch.float32)
    for position in (0, 100, 383, 384, 511, 700, 1023, 1024, 1099):
        (row,) = rows_of(heads, [(position, 1), (LONGEST - 1, 1), (position // 2, 1)], dtype=torch.float32)
        assert torch.equal(row, prefill[position])
