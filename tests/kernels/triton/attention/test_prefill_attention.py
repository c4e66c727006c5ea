"""Prefill attention compared with the reference, and the same bits in either kernel and in any chunk."""

from __future__ import annotations

import pytest
import torch

from app.kernels.ops import PagedBatch
from app.kernels.triton.attention.attention_configs import AttentionConfig, attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.grids import AttentionGrids
from app.kernels.triton.attention.prefill_attention import prefill_attention
from app.kernels.triton.attention.work import TILE_WIDTH, MixedWork
from tests.cases import long
from tests.kernels.batches import Heads, noise
from tests.kernels.triton.batches import DEVICE, device_batch, poison_unused, reference_attention, work_tensor

CONFIG = AttentionConfig(block_m=64, block_n=32, num_warps=4, num_stages=2)
HEADS = Heads(8, 2, 32)
CHUNKS = ((0, 5), (40, 1), (7, 33), (64, 16), (100, 2))
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SPLIT = 64


@pytest.fixture(autouse=True)
def _no_chunk_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a single row go through this kernel too."""
    monkeypatch.setattr("app.kernels.triton.attention.work.SHORT_ROWS", 0)


def tiles(heads: Heads, config=CONFIG) -> MixedWork:
    """Lists that contain only tiles."""
    group = heads.num_heads // heads.num_kv_heads
    return MixedWork(AttentionGrids(group, heads.num_kv_heads, 4, config, config, config), 8, 256)


def prefill(
    batch, step, q, *, window=None, softcap=None, scale=0.3, config=CONFIG, num_programs=3, out=None, **options
):
    """Run the kernel with an output of NaN."""
    out = torch.full_like(q, float("nan")) if out is None else out
    heads = Heads(q.shape[1], step.k_cache_BKGH.shape[2], q.shape[2])
    tiles_TX = batch.work[tiles(heads, config).sizes.first_tile :].view(-1, TILE_WIDTH)
    prefill_attention(
        q, step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), batch.block_tables_SB, batch.positions_T,
        batch.state_rows_T, batch.work, tiles_TX, scale, window, softcap, config=config, num_programs=num_programs,
        out=out, **options,
    )  # fmt: skip
    return out


def decode(batch, step, q, *, num_splits, window=None, softcap=None, scale=0.3, config=CONFIG):
    """Run the decode kernel with splits of fixed size."""
    sizes = scratch_sizes(len(q), q.shape[1], step.k_cache_BKGH.shape[2], q.shape[2], num_splits)
    out = torch.full_like(q, float("nan"))
    decode_attention(
        q, step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), batch.block_tables_SB, batch.positions_T,
        batch.state_rows_T, scale, window, softcap, partials=torch.full((sizes[0],), float("nan"), device=DEVICE),
        counters=torch.zeros(sizes[1], dtype=torch.int32, device=DEVICE), num_splits=num_splits, config=config,
        split_tokens=SPLIT, out=out,
    )  # fmt: skip
    return out


def take(batch, rows, work=None):
    """Some rows of a batch as a separate step: as one chunk, or each as a sequence."""
    positions, state_rows = batch.positions_T[rows], batch.state_rows_T[rows]
    made = None
    if work is not None:
        made = work_tensor(work.of([int(positions[0])], [len(positions)], len(positions)), work.sizes)
    return PagedBatch(len(positions), positions, state_rows, batch.block_tables_SB, batch.block_size, made)


def check(
    chunks,
    heads,
    *,
    dtype=torch.float32,
    num_rows=None,
    block_size=16,
    window=None,
    softcap=None,
    config=CONFIG,
    **options,
):
    work = tiles(heads, config)
    batch, step = device_batch(chunks, heads, num_rows=num_rows, work=work, block_size=block_size, dtype=dtype)
    poison_unused(step)
    q = noise(batch.num_tokens, heads.num_heads, heads.head_dim, dtype=dtype).to(DEVICE)
    out = prefill(batch, step, q, window=window, softcap=softcap, config=config, **options)
    assert out.dtype == dtype
    expected, count = reference_attention(step, q, 0.3, window, softcap), step.batch.num_tokens
    torch.testing.assert_close(out[:count].float(), expected[:count], rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert out[count:].isnan().all(), "rows behind the last chunk were written"


@pytest.mark.parametrize("dtype", [torch.float32, long(torch.float16), torch.bfloat16])
def test_ragged_chunks_agree_with_the_reference_and_padding_is_left_alone(dtype):
    check(CHUNKS, HEADS, dtype=dtype, num_rows=96)


@pytest.mark.parametrize("chunks", [((0, 1),), ((0, 64),), ((31, 1), (0, 16), (0, 17))])
def test_a_step_without_padding_and_spare_chunks_is_complete(chunks):
    check(chunks, HEADS)


def test_a_step_of_padding_alone_is_left_alone():
    check((), HEADS, num_rows=40)


@pytest.mark.parametrize("num_programs", [1, long(2), long(4), 50])
def test_any_number_of_programs_goes_through_all_tiles(num_programs):
    check(CHUNKS, HEADS, num_programs=num_programs)


@pytest.mark.parametrize(
    "heads", [Heads(1, 1, 16), Heads(3, 3, 72), Heads(7, 1, 80), Heads(16, 1, 24), Heads(6, 2, 16)]
)
def test_any_group_and_head_width_is_supported(heads):
    check(((0, 12), (30, 21)), heads)


@pytest.mark.parametrize("block_size", [8, 32, 64, 128])
def test_any_block_size_is_supported(block_size):
    check(((0, 12), (130, 21)), HEADS, block_size=block_size)


@pytest.mark.parametrize("window", [1, 33, long(60)])
def test_tokens_before_the_window_are_hidden(window):
    check(CHUNKS, HEADS, window=window)
    check(CHUNKS, HEADS, window=window, split_tokens=SPLIT)


@pytest.mark.parametrize(
    ("softcap", "window", "split_tokens"), [(2.0, None, None), (0.5, 33, SPLIT), long(2.0, 33, None)]
)
def test_scores_are_kept_below_a_cap(softcap, window, split_tokens):
    check(CHUNKS, HEADS, num_rows=96, window=window, softcap=softcap, split_tokens=split_tokens)


def test_heads_may_be_256_wide():
    config = attention_config("prefill", 256, torch.bfloat16, torch.bfloat16, (8, 0))
    check(((0, 12), (30, 21)), Heads(4, 1, 256), softcap=3.0, config=config)


def test_a_cache_of_float8_is_read():
    batch, step = device_batch(CHUNKS, HEADS, work=tiles(HEADS), dtype=torch.float8_e4m3fn)
    poison_unused(step)
    q = noise(batch.num_tokens, 8, 32, dtype=torch.float16).to(DEVICE)
    out = prefill(batch, step, q)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), reference_attention(step, q, 0.3, None), rtol=1e-2, atol=1e-2)


def test_queries_and_outputs_may_be_parts_of_wider_rows():
    batch, step = device_batch(CHUNKS, HEADS, work=tiles(HEADS))
    wide = noise(batch.num_tokens, 12, 32).to(DEVICE)
    wide_out = torch.full((batch.num_tokens, 10, 32), 7.0, device=DEVICE)
    prefill(batch, step, wide[:, :8], out=wide_out[:, :8])
    torch.testing.assert_close(wide_out[:, :8], reference_attention(step, wide[:, :8], 0.3, None), rtol=2e-5, atol=2e-5)
    assert (wide_out[:, 8:] == 7).all()


@pytest.mark.parametrize(
    ("window", "softcap", "dtype"),
    [
        (None, None, torch.float16),
        (50, None, torch.float32),
        (50, 2.0, torch.float32),
        long(None, None, torch.float32),
        long(50, None, torch.float16),
        long(50, 2.0, torch.float16),
    ],
)
def test_deterministic_rows_have_the_same_bits_in_both_kernels_and_any_chunk(dtype, window, softcap):
    total, heads = 132, Heads(2, 1, 32)
    full, step = device_batch([(0, total), (20, 9)], heads, work=tiles(heads), dtype=dtype)
    poison_unused(step)
    q = noise(full.num_tokens, 2, 32, dtype=dtype).to(DEVICE)
    options = {"window": window, "softcap": softcap}
    expected = prefill(full, step, q, split_tokens=SPLIT, **options)
    reference = reference_attention(step, q, 0.3, window, softcap)
    torch.testing.assert_close(expected.float(), reference, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    for part in (slice(0, 7), slice(7, 71), slice(71, 72), slice(72, 132), slice(132, 141)):
        alone = prefill(take(full, part, tiles(heads)), step, q[part], split_tokens=SPLIT, **options)
        assert torch.equal(alone, expected[part])
    rows = torch.tensor([0, 63, 64, 127, 128, 137], device=DEVICE)
    for num_splits in (1, 2, 4):
        decoded = decode(take(full, rows), step, q[rows], num_splits=num_splits, **options)
        assert torch.equal(decoded, expected[rows])
