"""Attention of chunks of many rows: prompts and parts of prompts, over the paged cache.

The new keys and values are already in the cache, so a cached prefix is nothing special. A program takes tiles of
`block_m` rows: the query heads of one key head times as many consecutive tokens as fit, which makes the tile large
enough for the matrix units whatever the group, and reads each key for all of them at once. The tiles are a list in the
device's memory (`work`), so a captured step serves any chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.attention import work as layout
from app.kernels.triton.attention.attention_configs import AttentionConfig
from app.kernels.triton.attention.attention_tile import (
    attend_splits,
    attend_tokens,
    check_layout,
    empty_state,
    first_tile,
    normalize,
    product_type,
    score_scales,
)
from app.kernels.triton.dependent import launch_options, wait_for_previous
from app.kernels.triton.interpreter import is_interpreting

NUM_TILES, TILE_WIDTH = tl.constexpr(layout.NUM_TILES), tl.constexpr(layout.TILE_WIDTH)


@triton.jit
def _attend_tile(
    q, k_cache, v_cache, out, tables, positions, state_rows, first_row, end, table_stride, qk_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute and store the attention of the rows from `first_row` on that fit a tile and lie before `end`."""
    TILE_TOKENS: tl.constexpr = BLOCK_M // GROUP
    head = tl.program_id(1)
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
            begin // SPLIT_TOKENS * SPLIT_TOKENS, last_position + 1, first_position, last_position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE, SPLIT_TOKENS,
        )  # fmt: skip
    else:
        top, total, acc = attend_tokens(
            q_tile, row_positions, top, total, acc, k_head, v_head, table, begin, last_position + 1, first_position,
            last_position, qk_scale, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE,
        )  # fmt: skip
    result = normalize(total, acc).to(out.dtype.element_ty)
    out_first = out + first_row.to(tl.int64) * OUT_STRIDE
    tl.store(out_first + (rows * OUT_STRIDE + heads)[:, None] + width[None, :], result, mask=stored)


@triton.jit
def _prefill_kernel(
    q, k_cache, v_cache, out, tables, positions, state_rows, work, tiles, table_stride, qk_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    # The first tiles that a program takes are the longer the higher its number; the longest begin first.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    for number in tl.range(program, tl.load(work + NUM_TILES), tl.num_programs(0), disable_licm=True):
        first_row = tl.load(tiles + number * TILE_WIDTH)
        end = tl.load(tiles + number * TILE_WIDTH + 1)
        _attend_tile(
            q, k_cache, v_cache, out, tables, positions, state_rows, first_row, end, table_stride, qk_scale,
            GROUP, HEAD_DIM, BLOCK_SIZE, ROW_STRIDE, OUT_STRIDE, BLOCK_STRIDE, SLOT_STRIDE, HEAD_STRIDE, WIDTH, BLOCK_M,
            BLOCK_N, WINDOW, CAP_SCALE, SPLIT_TOKENS, UPCAST,
        )  # fmt: skip


def prefill_attention(
    q_TNH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    block_tables_SB: Tensor,
    positions_T: Tensor,
    state_rows_T: Tensor,
    work: Tensor,
    tiles_TX: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    *,
    num_programs: int,
    config: AttentionConfig,
    split_tokens: int | None = None,
    out: Tensor,
) -> None:
    """Compute attention of the rows of all tiles: out[T, N, H]; other rows are left alone.

    `work` says how many tiles of the list there are (see attention/work.py), which `num_programs` programs of each key
    head share out: any number will do. The cache may be of type float8_e4m3fn. With `split_tokens`, a
    multiple of `config.block_n`, the order of summation is that of deterministic attention: see `decode_attention`.
    """
    num_heads, head_dim, num_kv_heads = *q_TNH.shape[1:], k_cache_BKGH.shape[2]
    group = num_heads // num_kv_heads
    check_layout(q_TNH, k_cache_BKGH, v_cache_BKGH, scale, softcap, config, split_tokens, out=out)
    qk_scale, cap_scale = score_scales(scale, softcap)
    _prefill_kernel[num_programs, num_kv_heads](
        q_TNH, k_cache_BKGH, v_cache_BKGH, out, block_tables_SB, positions_T, state_rows_T, work, tiles_TX,
        block_tables_SB.stride(0), qk_scale, group, head_dim,
        k_cache_BKGH.shape[1], q_TNH.stride(0), out.stride(0), k_cache_BKGH.stride(0), k_cache_BKGH.stride(1),
        k_cache_BKGH.stride(2), triton.next_power_of_2(head_dim), config.block_m, config.block_n, window or 0,
        cap_scale, split_tokens or 0, is_interpreting(), num_warps=config.num_warps, num_stages=config.num_stages,
        **launch_options(),
    )  # fmt: skip
