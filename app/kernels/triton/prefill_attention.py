"""Attention of chunks of many rows: prompts, parts of prompts and drafts, over the paged cache.

The new keys and values are already in the cache, so a cached prefix is nothing special. A program takes a tile of
`block_m` rows: the query heads of one key head times as many consecutive tokens as fit, which makes the tile large
enough for the matrix units whatever the group, and reads each key for all of them at once. Which chunk a tile belongs
to is counted on the device from where the chunks begin, so the grid depends on shapes only.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.attention_configs import AttentionConfig
from app.kernels.triton.attention_tile import (
    attend_splits,
    attend_tokens,
    empty_state,
    first_tile,
    normalize,
    product_type,
)
from app.kernels.triton.interpreter import is_interpreting


@triton.jit
def _find_tile(tile, chunk_starts, num_starts, num_rows, TILE_TOKENS: tl.constexpr, MAX_STARTS: tl.constexpr):
    """Return the chunk of a tile, its first row, and the chunk's first row and end; the padding is the last chunk.

    Chunk c's tiles are counted from chunk_starts[c] // TILE_TOKENS + c: one more than enough for those before it.
    """
    index = tl.arange(0, MAX_STARTS)
    starts = tl.load(chunk_starts + index, mask=index < num_starts, other=0)
    chunk = tl.sum(((starts // TILE_TOKENS + index <= tile) & (index < num_starts)).to(tl.int32)) - 1
    start = tl.load(chunk_starts + chunk)
    end = tl.load(chunk_starts + chunk + 1, mask=chunk + 1 < num_starts, other=num_rows)
    return chunk, start + (tile - start // TILE_TOKENS - chunk) * TILE_TOKENS, start, end


@triton.jit(do_not_specialize=["num_starts", "num_rows"])
def _prefill_kernel(
    q, k_cache, v_cache, out, tables, positions, state_rows, chunk_starts, num_starts, num_rows, table_stride, qk_scale,
    v_scale, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MAX_STARTS: tl.constexpr,
    MIN_ROWS: tl.constexpr, WINDOW: tl.constexpr, SPLIT_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    TILE_TOKENS: tl.constexpr = BLOCK_M // GROUP
    # A prompt's last tiles see most of it: they begin first, so that none of them is left over at the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    chunk, first_row, start, end = _find_tile(tile, chunk_starts, num_starts, num_rows, TILE_TOKENS, MAX_STARTS)
    if first_row >= end or (end - start < MIN_ROWS and chunk + 1 < num_starts):
        return
    index = tl.arange(0, BLOCK_M)
    rows = index // GROUP
    real = (first_row + rows < end) & (index < TILE_TOKENS * GROUP)
    row_positions = tl.load(positions + first_row + rows, mask=real, other=-1)
    first_position = tl.load(positions + first_row)
    last_position = tl.load(positions + tl.minimum(first_row + TILE_TOKENS, end) - 1)
    table = tables + tl.load(state_rows + first_row).to(tl.int64) * table_stride
    width = tl.arange(0, WIDTH)
    heads = (head * GROUP + index % GROUP) * HEAD_DIM
    stored = real[:, None] & (width < HEAD_DIM)[None, :]
    q_first = q + first_row.to(tl.int64) * ROW_STRIDE
    q_tile = tl.load(q_first + (rows * ROW_STRIDE + heads)[:, None] + width[None, :], mask=stored, other=0.0)
    q_tile = product_type(q_tile, k_cache, UPCAST)
    k_head, v_head = k_cache + head * HEAD_STRIDE, v_cache + head * HEAD_STRIDE
    top, total, acc = empty_state(BLOCK_M, WIDTH)
    begin = first_tile(first_position, BLOCK_N, WINDOW)
    if SPLIT_TOKENS:
        top, total, acc = attend_splits(
            q_tile, row_positions, top, total, acc, k_head, v_head, table,
            begin // SPLIT_TOKENS * SPLIT_TOKENS, first_position, last_position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, SPLIT_TOKENS,
        )  # fmt: skip
    else:
        top, total, acc = attend_tokens(
            q_tile, row_positions, top, total, acc, k_head, v_head, table, begin, last_position + 1, first_position,
            last_position, qk_scale, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW,
        )  # fmt: skip
    result = normalize(total, acc, v_scale).to(out.dtype.element_ty)
    out_first = out + first_row.to(tl.int64) * OUT_STRIDE
    tl.store(out_first + (rows * OUT_STRIDE + heads)[:, None] + width[None, :], result, mask=stored)


def prefill_attention(
    q_TNH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    block_tables_SB: Tensor,
    positions_T: Tensor,
    state_rows_T: Tensor,
    chunk_starts_C: Tensor,
    scale: float,
    window: int | None,
    *,
    config: AttentionConfig,
    min_rows: int = 1,
    split_tokens: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor,
) -> None:
    """Attention of every chunk of at least `min_rows` rows: out[T, N, H], zeros in the rows behind the last chunk.

    The rows of smaller chunks are left to `decode_attention`. The cache may be of type float8_e4m3fn: its numbers times
    `k_scale` and `v_scale` are the keys and values. With `split_tokens`, a multiple of `config.block_n`, the order of
    summation is that of deterministic attention: see `decode_attention`.
    """
    num_rows, num_heads, head_dim = q_TNH.shape
    num_starts, num_kv_heads = len(chunk_starts_C), k_cache_BKGH.shape[2]
    group = num_heads // num_kv_heads
    assert k_cache_BKGH.stride() == v_cache_BKGH.stride()
    assert q_TNH.stride()[1:] == out.stride()[1:] == (head_dim, 1) and k_cache_BKGH.stride(3) == 1
    assert scale > 0 and not (split_tokens or 0) % config.block_n and group <= config.block_m
    grid = (num_rows // (config.block_m // group) + num_starts, num_kv_heads)
    _prefill_kernel[grid](
        q_TNH, k_cache_BKGH, v_cache_BKGH, out, block_tables_SB, positions_T, state_rows_T, chunk_starts_C, num_starts,
        num_rows, block_tables_SB.stride(0), scale * k_scale * math.log2(math.e), v_scale, group, head_dim,
        k_cache_BKGH.shape[1], q_TNH.stride(0), out.stride(0), k_cache_BKGH.stride(0), k_cache_BKGH.stride(1),
        k_cache_BKGH.stride(2), triton.next_power_of_2(head_dim), config.block_m, config.block_n,
        triton.next_power_of_2(num_starts), min_rows, window or 0, split_tokens or 0, is_interpreting(),
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
