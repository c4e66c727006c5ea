"""Norm of query and key heads, rotary embedding, scales of queries, and the write to the paged cache, in one kernel.

A program takes one token row and a group of its heads, queries, keys and values alike: the kind of a head decides what
happens to it. The slot comes from the block table inside the kernel, so the host prepares nothing per token.

The rotation is transformers' `rotate_half`. Rounding as in the reference: normed heads are rounded to the storage type
before they are rotated, and the rotation is float32; queries are rounded before they are multiplied by the scale of
their position, which has their type too. Values are cut at the range of a cache of float8_e4m3fn.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import EARLY_LINES, launch_options, prefetch_rows, wait_for_previous

# Elements per program: 16 bytes of each half for the threads of 2 warps, and several programs for a single row.
TILE = 1024
FP8_MAX = tl.constexpr(448.0)


@triton.jit
def _normed(first, second, low, high, eps, dtype, HALF: tl.constexpr):
    """Norm heads (RMS) given as halves [heads, HALF] in float32, with weights (low, high) and `dtype`'s roundings."""
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
    first = ((first * scale).to(dtype).to(tl.float32) * low.to(tl.float32)).to(dtype).to(tl.float32)
    second = ((second * scale).to(dtype).to(tl.float32) * high.to(tl.float32)).to(dtype).to(tl.float32)
    return first, second


@triton.jit
def _times(values, scale, dtype):
    """Return float32 values, rounded to `dtype`, times a scale of that type."""
    return values.to(dtype).to(tl.float32) * scale.to(dtype).to(tl.float32)


@triton.jit
def _store_cached(cache, values, mask):
    """Store float32 values in the cache's type; those beyond the range of float8 are cut."""
    if cache.dtype.element_ty == tl.float8e4nv:
        values = tl.minimum(tl.maximum(values, -FP8_MAX), FP8_MAX)
    tl.store(cache, values.to(cache.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_kernel(
    qkv, norm_weight, eps, rope, query_scale, k_cache, v_cache, tables, positions, state_rows, out,
    qkv_stride, rope_stride, block_stride, slot_stride, head_stride, table_stride,
    BLOCK_SIZE: tl.constexpr, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr, COLUMNS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    if norm_weight is not None:
        prefetch_rows(
            norm_weight, tl.program_id(1) * HEADS, NUM_HEADS + NUM_KV_HEADS, 2 * HALF, 2 * HALF, HEADS, EARLY_LINES,
            IS_DEPENDENT,
        )  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, COLUMNS)[None, :]
    inside = half < HALF
    # Queries [T, N, H] come first, so a query head's number is its place in `out`.
    queries = (heads < NUM_HEADS) & inside
    outputs = out + (row * NUM_HEADS + heads) * (2 * HALF) + half
    if position < 0:
        nothing = tl.zeros([HEADS, COLUMNS], dtype=out.dtype.element_ty)
        tl.store(outputs, nothing, mask=queries)
        tl.store(outputs + HALF, nothing, mask=queries)
        return
    rotated = (heads < NUM_HEADS + NUM_KV_HEADS) & inside
    keys = rotated & (heads >= NUM_HEADS)
    values = (heads >= NUM_HEADS + NUM_KV_HEADS) & (heads < NUM_HEADS + 2 * NUM_KV_HEADS) & inside
    # All loads come before the first store: none waits for another, but for what the position decides.
    source = qkv + row * qkv_stride + heads * (2 * HALF) + half
    first = tl.load(source, mask=rotated | values, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=rotated | values, other=0.0).to(tl.float32)
    cos = tl.load(rope + position * rope_stride + half, mask=inside, other=0.0)
    sin = tl.load(rope + position * rope_stride + HALF + half, mask=inside, other=0.0)
    if query_scale is not None:
        scale = tl.load(query_scale + position)
    block = tl.load(tables + tl.load(state_rows + row).to(tl.int64) * table_stride + position // BLOCK_SIZE)
    slot = block.to(tl.int64) * block_stride + (position % BLOCK_SIZE) * slot_stride
    low, high = first, second
    if norm_weight is not None:
        weights = norm_weight + heads * (2 * HALF) + half
        low_weight = tl.load(weights, mask=rotated, other=0.0)
        high_weight = tl.load(weights + HALF, mask=rotated, other=0.0)
        low, high = _normed(first, second, low_weight, high_weight, eps, qkv.dtype.element_ty, HALF)
    low, high = low * cos - high * sin, high * cos + low * sin
    low_query, high_query = low, high
    if query_scale is not None:
        low_query, high_query = _times(low, scale, out.dtype.element_ty), _times(high, scale, out.dtype.element_ty)
    tl.store(outputs, low_query.to(out.dtype.element_ty), mask=queries)
    tl.store(outputs + HALF, high_query.to(out.dtype.element_ty), mask=queries)
    key_slots = k_cache + slot + (heads - NUM_HEADS) * head_stride + half
    _store_cached(key_slots, low, keys)
    _store_cached(key_slots + HALF, high, keys)
    value_slots = v_cache + slot + (heads - NUM_HEADS - NUM_KV_HEADS) * head_stride + half
    _store_cached(value_slots, first, values)
    _store_cached(value_slots + HALF, second, values)


def qk_norm_rope_kv_write(
    qkv_TX: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    rope_PH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    block_tables_SB: Tensor,
    positions_T: Tensor,
    state_rows_T: Tensor,
    block_size: int,
    query_scale_P: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    """Normalize (given `norm_weight` [N+G, H]) and rotate queries and keys; write keys and values to the cache.

    `qkv_TX` holds N query, G key and G value heads, `rope_PH` (float32) cos then sin of each position; out[T, N, H] are
    the queries, times `query_scale_P` (float32) of their positions. A row at position -1 gives zeros and is not written
    to the cache.
    """
    rows, num_heads, head_dim = out.shape
    num_kv_heads = k_cache_BKGH.shape[2]
    assert k_cache_BKGH.stride() == v_cache_BKGH.stride() and k_cache_BKGH.stride(3) == 1
    assert out.is_contiguous() and rope_PH.dtype == torch.float32 and rope_PH.stride(1) == qkv_TX.stride(1) == 1
    assert norm_weight is None or norm_weight.is_contiguous()
    assert query_scale_P is None or query_scale_P.is_contiguous()
    columns = triton.next_power_of_2(head_dim // 2)
    heads = max(1, TILE // (2 * columns))
    if rows:
        _rotate_kernel[(rows, triton.cdiv(num_heads + 2 * num_kv_heads, heads))](
            qkv_TX, norm_weight, eps, rope_PH, query_scale_P, k_cache_BKGH, v_cache_BKGH, block_tables_SB, positions_T,
            state_rows_T, out, qkv_TX.stride(0), rope_PH.stride(0), *k_cache_BKGH.stride()[:3],
            block_tables_SB.stride(0), BLOCK_SIZE=block_size, NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads,
            HALF=head_dim // 2, HEADS=heads, COLUMNS=columns, num_warps=2,
            **launch_options(),
        )  # fmt: skip
