"""Split-KV decode attention compared with the reference: ragged contexts, padding, splits, windows, FP8."""

from __future__ import annotations

import pytest
import torch

from app.kernels.triton.attention.attention_configs import AttentionConfig, attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from tests.cases import long
from tests.kernels.batches import Heads, noise
from tests.kernels.triton.batches import DEVICE, device_batch, poison_unused, reference_attention

CONFIG = AttentionConfig(block_m=16, block_n=32, num_warps=4, num_stages=2)
HEADS = Heads(8, 2, 32)
CONTEXTS = (0, 1, 31, 32, 130, 400)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def attend(batch, step, q, *, num_splits=4, window=None, softcap=None, scale=0.3, config=CONFIG, out=None, **options):
    """Run the kernel with outputs and scratch of NaN; check that the counters are reset to zero."""
    sizes = scratch_sizes(len(q), q.shape[1], step.k_cache_BKGH.shape[2], q.shape[2], num_splits)
    counters = torch.zeros(sizes[1], dtype=torch.int32, device=DEVICE)
    partials = torch.full((sizes[0],), float("nan"), device=DEVICE)
    out = torch.full_like(q, float("nan")) if out is None else out
    decode_attention(
        q, step.k_cache_BKGH.to(DEVICE), step.v_cache_BKGH.to(DEVICE), batch.block_tables_SB, batch.positions_T,
        batch.state_rows_T, scale, window, softcap, partials=partials, counters=counters, num_splits=num_splits,
        config=config, out=out, **options,
    )  # fmt: skip
    assert not counters.any()
    return out


def check(contexts, heads, *, dtype=torch.float32, num_rows=None, block_size=16, window=None, softcap=None, **options):
    batch, step = device_batch(
        [(n, 1) for n in contexts], heads, num_rows=num_rows, block_size=block_size, dtype=dtype
    )  # fmt: skip
    poison_unused(step)
    q = noise(batch.num_tokens, heads.num_heads, heads.head_dim, dtype=dtype).to(DEVICE)
    out = attend(batch, step, q, window=window, softcap=softcap, **options)
    expected = reference_attention(step, q, 0.3, window, softcap)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, long(torch.float16), torch.bfloat16])
def test_ragged_contexts_agree_with_the_reference_and_padding_gets_zeros(dtype):
    check(CONTEXTS, HEADS, dtype=dtype, num_rows=8)


@pytest.mark.parametrize(
    "heads", [Heads(1, 1, 16), Heads(3, 3, 72), Heads(7, 1, 80), Heads(16, 1, 24), Heads(6, 2, 16)]
)
def test_any_group_and_head_width_is_supported(heads):
    check((5, 200), heads)


@pytest.mark.parametrize("block_size", [8, 32, 64, 128])
def test_any_block_size_is_supported(block_size):
    check((70, 300), HEADS, block_size=block_size)


@pytest.mark.parametrize("window", [1, 33, long(200)])
def test_tokens_before_the_window_are_hidden(window):
    check(CONTEXTS, HEADS, window=window)


@pytest.mark.parametrize(
    ("softcap", "window", "options"),
    [
        (2.0, None, {}),
        (0.5, 33, {"split_tokens": 64}),
        long(2.0, 33, {"num_splits": 3}),
        long(2.0, None, {"split_tokens": 64, "one_launch": False}),
    ],
)
def test_scores_are_kept_below_a_cap(softcap, window, options):
    check(CONTEXTS, HEADS, num_rows=8, window=window, softcap=softcap, **options)


def test_heads_may_be_256_wide():
    config = attention_config("decode", 256, torch.bfloat16, torch.bfloat16, (9, 0))
    check((5, 90), Heads(4, 1, 256), softcap=3.0, config=config)


@pytest.mark.parametrize(("num_splits", "min_tokens"), [long(1, 1), (3, 1), (16, 64), long(4, 640)])
def test_any_number_of_splits_gives_the_same_attention(num_splits, min_tokens):
    check((3, 300, 700), Heads(4, 1, 16), num_splits=num_splits, min_tokens=min_tokens)


def test_a_second_launch_may_merge_the_splits():
    check((3, 400), Heads(4, 1, 16), num_rows=3, num_splits=16, one_launch=False)
    check(CONTEXTS, HEADS, num_splits=2, split_tokens=64, one_launch=False)


@pytest.mark.parametrize("window", [long(None), 100])
def test_splits_of_fixed_size_cover_longer_contexts(window):
    check(CONTEXTS, HEADS, window=window, num_splits=3, split_tokens=64)


def test_a_cache_of_float8_is_read():
    batch, step = device_batch([(n, 1) for n in CONTEXTS], HEADS, num_rows=8, dtype=torch.float8_e4m3fn)
    poison_unused(step)
    q = noise(8, 8, 32, dtype=torch.float16).to(DEVICE)
    out = attend(batch, step, q)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), reference_attention(step, q, 0.3, None), rtol=1e-2, atol=1e-2)


def test_queries_and_outputs_may_be_parts_of_wider_rows():
    batch, step = device_batch([(n, 1) for n in CONTEXTS], HEADS)
    wide = noise(6, 12, 32).to(DEVICE)
    wide_out = torch.full((6, 10, 32), 7.0, device=DEVICE)
    attend(batch, step, wide[:, :8], out=wide_out[:, :8])
    torch.testing.assert_close(wide_out[:, :8], reference_attention(step, wide[:, :8], 0.3, None), rtol=2e-5, atol=2e-5)
    assert (wide_out[:, 8:] == 7).all()
