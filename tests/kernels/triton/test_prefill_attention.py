"""Prefill attention compared with the reference, and the same bits in either kernel and in any chunk."""

from __future__ import annotations

import pytest
import torch

from app.kernels.ops import PagedBatch
from app.kernels.triton.attention_configs import AttentionConfig
from app.kernels.triton.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.prefill_attention import prefill_attention
from tests.kernels.batches import Heads, noise
from tests.kernels.triton.batches import DEVICE, device_batch, poison_unused, reference_attention

CONFIG = AttentionConfig(block_m=64, block_n=32, num_warps=4, num_stages=2)
HEADS = Heads(8, 2, 32)
CHUNKS = ((0, 5), (40, 1), (7, 33), (64, 16), (100, 2))
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SPLIT = 64


def prefill(batch, step, q, *, window=None, scale=0.3, config=CONFIG, out=None, **options):
    """Run the kernel with an output of NaN."""
    out = torch.full_like(q, float("nan")) if out is None else out
    prefill_attention(
        q, step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), batch.block_tables_SB, batch.positions_T,
        batch.state_rows_T, batch.chunk_starts_C, scale, window, config=config, out=out, **options,
    )  # fmt: skip
    return out


def decode(batch, step, q, *, num_splits, window=None, scale=0.3, config=CONFIG):
    """Run the decode kernel with splits of fixed size."""
    sizes = scratch_sizes(len(q), q.shape[1], step.k_cache_BKGH.shape[2], q.shape[2], num_splits)
    out = torch.full_like(q, float("nan"))
    decode_attention(
        q, step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), batch.block_tables_SB, batch.positions_T,
        batch.state_rows_T, scale, window, partials=torch.full((sizes[0],), float("nan"), device=DEVICE),
        counters=torch.zeros(sizes[1], dtype=torch.int32, device=DEVICE), num_splits=num_splits, config=config,
        split_tokens=SPLIT, out=out,
    )  # fmt: skip
    return out


def take(batch, rows, *, chunked):
    """Some rows of a batch as a separate step: as one chunk, or each as a sequence."""
    positions, state_rows = batch.positions_T[rows], batch.state_rows_T[rows]
    starts = torch.tensor([0, len(positions)], dtype=torch.int32, device=DEVICE) if chunked else None
    return PagedBatch(
        len(positions), positions, state_rows, batch.block_tables_SB, batch.block_size, chunk_starts_C=starts
    )


def check(chunks, heads, *, dtype=torch.float32, num_rows=None, max_chunks=8, block_size=16, window=None, **options):
    batch, step = device_batch(
        chunks, heads, num_rows=num_rows, max_chunks=max_chunks, block_size=block_size, dtype=dtype
    )
    poison_unused(step)
    q = noise(batch.num_tokens, heads.num_heads, heads.head_dim, dtype=dtype).to(DEVICE)
    out = prefill(batch, step, q, window=window, **options)
    assert out.dtype == dtype
    expected = reference_attention(step, q, 0.3, window)
    torch.testing.assert_close(out.float(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ragged_chunks_agree_with_the_reference_and_padding_gets_zeros(dtype):
    check(CHUNKS, HEADS, dtype=dtype, num_rows=96)


@pytest.mark.parametrize("chunks", [((0, 1),), ((0, 64),), ((31, 1), (0, 16), (0, 17))])
def test_a_step_without_padding_and_spare_chunks_is_complete(chunks):
    check(chunks, HEADS, max_chunks=len(chunks))


def test_a_step_of_padding_gives_zeros():
    check((), HEADS, num_rows=40)


@pytest.mark.parametrize(
    "heads", [Heads(1, 1, 16), Heads(3, 3, 72), Heads(7, 1, 80), Heads(16, 1, 24), Heads(6, 2, 16)]
)
def test_any_group_and_head_width_is_supported(heads):
    check(((0, 12), (30, 21)), heads)


@pytest.mark.parametrize("block_size", [8, 32, 64])
def test_any_block_size_is_supported(block_size):
    check(((0, 12), (130, 21)), HEADS, block_size=block_size)


@pytest.mark.parametrize("window", [1, 33, 60])
def test_tokens_before_the_window_are_hidden(window):
    check(CHUNKS, HEADS, window=window)
    check(CHUNKS, HEADS, window=window, split_tokens=SPLIT)


def test_a_cache_of_float8_is_scaled():
    batch, step = device_batch(CHUNKS, HEADS, max_chunks=5, dtype=torch.float8_e4m3fn)
    poison_unused(step)
    q = noise(batch.num_tokens, 8, 32, dtype=torch.float16).to(DEVICE)
    out = prefill(batch, step, q, k_scale=0.5, v_scale=3.0)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), reference_attention(step, q, 0.3, None, 0.5, 3.0), rtol=1e-2, atol=1e-2)


def test_chunks_with_fewer_rows_than_the_minimum_are_not_written():
    batch, step = device_batch(CHUNKS, HEADS, num_rows=58, max_chunks=9)
    q = noise(58, 8, 32).to(DEVICE)
    out = prefill(batch, step, q, min_rows=2, out=torch.full_like(q, 7.0))
    expected = reference_attention(step, q, 0.3, None)
    expected[5] = 7
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


def test_queries_and_outputs_may_be_parts_of_wider_rows():
    batch, step = device_batch(CHUNKS, HEADS, max_chunks=5)
    wide = noise(batch.num_tokens, 12, 32).to(DEVICE)
    wide_out = torch.full((batch.num_tokens, 10, 32), 7.0, device=DEVICE)
    prefill(batch, step, wide[:, :8], out=wide_out[:, :8])
    torch.testing.assert_close(wide_out[:, :8], reference_attention(step, wide[:, :8], 0.3, None), rtol=2e-5, atol=2e-5)
    assert (wide_out[:, 8:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 50])
def test_deterministic_rows_have_the_same_bits_in_both_kernels_and_any_chunk(dtype, window):
    total, heads = 150, Heads(4, 2, 32)
    full, step = device_batch([(0, total), (20, 9)], heads, max_chunks=2, dtype=dtype)
    poison_unused(step)
    q = noise(full.num_tokens, 4, 32, dtype=dtype).to(DEVICE)
    expected = prefill(full, step, q, window=window, split_tokens=SPLIT)
    reference = reference_attention(step, q, 0.3, window)
    torch.testing.assert_close(expected.float(), reference, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    for part in (slice(0, 7), slice(7, 71), slice(71, 72), slice(72, 150), slice(150, 159)):
        alone = prefill(take(full, part, chunked=True), step, q[part], window=window, split_tokens=SPLIT)
        assert torch.equal(alone, expected[part])
    rows = torch.tensor([0, 1, 63, 64, 100, 127, 128, 149, 155], device=DEVICE)
    for num_splits in (1, 2, 4):
        decoded = decode(take(full, rows, chunked=False), step, q[rows], num_splits=num_splits, window=window)
        assert torch.equal(decoded, expected[rows])
