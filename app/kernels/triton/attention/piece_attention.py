"""Attention of the rows of a mixed step that decode, and of short chunks, over their contexts in the paged cache.

What there is to do is a list in the device's memory (`work`): pieces of contexts, each for a few consecutive rows of
one sequence, cut by the host so that the programs, which share them out, get about as much each. The states of the
pieces of the same rows are merged in their order by whichever program finishes the last of them. A piece that does not
lie in the window of a layer leaves an empty state.

Deterministic attention: a piece that was cut is one split of fixed size, any other goes through all splits, and what
lies behind those that were cut is gone through at the merge. The sums are those of the other kernels.
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
    merge_states,
    normalize,
    product_type,
    score_scales,
)
from app.kernels.triton.dependent import launch_options, wait_for_previous
from app.kernels.triton.interpreter import is_interpreting

NUM_PIECES, PIECE_WIDTH = tl.constexpr(layout.NUM_PIECES), tl.constexpr(layout.PIECE_WIDTH)
FIRST_ROW, NUM_ROWS = tl.constexpr(layout.FIRST_ROW), tl.constexpr(layout.NUM_ROWS)
BEGIN, END = tl.constexpr(layout.BEGIN), tl.constexpr(layout.END)
FIRST_SLOT, NUM_SPLITS, SPLIT = (
    tl.constexpr(layout.FIRST_SLOT),
    tl.constexpr(layout.NUM_SPLITS),
    tl.constexpr(layout.SPLIT),
)
MERGED_TOGETHER = tl.constexpr(2)


@triton.jit
def _attend(
    query, row_positions, k_head, v_head, table, begin, end, first_position, last_position, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr, SPLIT_TOKENS: tl.constexpr,
):  # fmt: skip
    """Return the state after the tokens begin .. end - 1, without those before the window."""
    top, total, acc = empty_state(query.shape[0], query.shape[1])
    first = first_tile(first_position, BLOCK_N, WINDOW)
    if SPLIT_TOKENS:
        top, total, acc = attend_splits(
            query, row_positions, top, total, acc, k_head, v_head, table,
            tl.maximum(begin, first // SPLIT_TOKENS * SPLIT_TOKENS), end, first_position, last_position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE, SPLIT_TOKENS,
        )  # fmt: skip
    else:
        top, total, acc = attend_tokens(
            query, row_positions, top, total, acc, k_head, v_head, table, tl.maximum(begin, first), end,
            first_position, last_position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE,
        )  # fmt: skip
    return top, total, acc


@triton.jit
def _partial(partials, slot, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return where a slot's sums [ROWS, HEAD_DIM] of this key head are, and its tops and totals [ROWS, 2]."""
    sums = partials + (slot.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (ROWS * (HEAD_DIM + 2))
    return sums, sums + ROWS * HEAD_DIM


@triton.jit
def _merge(partials, first_slot, count, ROWS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return the state of the pieces in `count` slots, merged in their order."""
    rows, width = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    offsets = rows[:, None] * HEAD_DIM + width[None, :]
    stored = (rows >= 0)[:, None] & (width < HEAD_DIM)[None, :]
    top, total, acc = empty_state(ROWS, WIDTH)
    for begin in range(0, count, MERGED_TOGETHER):
        for i in tl.static_range(MERGED_TOGETHER):  # several loads under way at once; absent states are empty ones
            exists = begin + i < count
            sums, tops = _partial(partials, first_slot + begin + i, ROWS, HEAD_DIM)
            # Other multiprocessors wrote them: not from this one's own cache.
            top_next = tl.load(tops + rows * 2, mask=(rows >= 0) & exists, other=float("-inf"), cache_modifier=".cg")
            total_next = tl.load(tops + rows * 2 + 1, mask=(rows >= 0) & exists, other=0.0, cache_modifier=".cg")
            acc_next = tl.load(sums + offsets, mask=stored & exists, other=0.0, cache_modifier=".cg")
            top, total, acc = merge_states(top, total, acc, top_next, total_next, acc_next)
    return top, total, acc


@triton.jit
def _piece_kernel(
    q, k_cache, v_cache, out, partials, counters, tables, positions, state_rows, work, pieces, table_stride, qk_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    head = tl.program_id(0)
    index, width = tl.arange(0, BLOCK_M), tl.arange(0, WIDTH)
    rows, heads = index // GROUP, (head * GROUP + index % GROUP) * HEAD_DIM
    k_head, v_head = k_cache + head * HEAD_STRIDE, v_cache + head * HEAD_STRIDE
    exists = (width < HEAD_DIM)[None, :]
    program = tl.num_programs(1) - 1 - tl.program_id(1)
    for number in tl.range(program, tl.load(work + NUM_PIECES), tl.num_programs(1), disable_licm=True):
        piece = pieces + number * PIECE_WIDTH
        first_row, num_rows = tl.load(piece + FIRST_ROW), tl.load(piece + NUM_ROWS)
        first_slot, count = tl.load(piece + FIRST_SLOT), tl.load(piece + NUM_SPLITS)
        first_position = tl.load(positions + first_row)
        last_position = first_position + num_rows - 1
        row_positions = first_position + tl.minimum(rows, num_rows - 1)
        table = tables + tl.load(state_rows + first_row).to(tl.int64) * table_stride
        stored = (rows < num_rows)[:, None] & exists
        q_first = q + first_row.to(tl.int64) * ROW_STRIDE
        query = tl.load(q_first + (rows * ROW_STRIDE + heads)[:, None] + width[None, :], mask=stored, other=0.0)
        query = product_type(query, k_cache, UPCAST)
        top, total, acc = _attend(
            query, row_positions, k_head, v_head, table, tl.load(piece + BEGIN), tl.load(piece + END), first_position,
            last_position, qk_scale, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE,
            SPLIT_TOKENS,
        )  # fmt: skip
        is_complete = count == 1
        if count > 1:
            sums, tops = _partial(partials, first_slot + tl.load(piece + SPLIT), BLOCK_M, HEAD_DIM)
            tl.store(sums + index[:, None] * HEAD_DIM + width[None, :], acc, mask=(index >= 0)[:, None] & exists)
            tl.store(tops + index * 2, top)
            tl.store(tops + index * 2 + 1, total)
            tl.debug_barrier()  # all threads have stored their part before one of them says so
            counter = counters + first_slot * tl.num_programs(0) + head
            is_complete = tl.atomic_add(counter, 1, sem="acq_rel") + 1 == count
            if is_complete:
                tl.store(counter, 0)
                top, total, acc = _merge(partials, first_slot, count, BLOCK_M, WIDTH, HEAD_DIM)
                if SPLIT_TOKENS:
                    begin = tl.maximum(count * SPLIT_TOKENS, first_tile(first_position, BLOCK_N, WINDOW))
                    top, total, acc = attend_splits(
                        query, row_positions, top, total, acc, k_head, v_head, table,
                        begin // SPLIT_TOKENS * SPLIT_TOKENS, last_position + 1, first_position, last_position,
                        qk_scale, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE,
                        SPLIT_TOKENS,
                    )  # fmt: skip
        if is_complete:
            result = normalize(total, acc).to(out.dtype.element_ty)
            out_first = out + first_row.to(tl.int64) * OUT_STRIDE
            tl.store(out_first + (rows * OUT_STRIDE + heads)[:, None] + width[None, :], result, mask=stored)


def piece_scratch_sizes(num_slots: int, num_kv_heads: int, head_dim: int, block_m: int) -> tuple[int, int]:
    """Return the float32 numbers of `partials` and the int32 numbers of `counters` that so many partial sums need.

    The counters must be zeros before the first launch; each launch leaves zeros.
    """
    return num_slots * num_kv_heads * block_m * (head_dim + 2), num_slots * num_kv_heads


def piece_attention(
    q_TNH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    block_tables_SB: Tensor,
    positions_T: Tensor,
    state_rows_T: Tensor,
    work: Tensor,
    pieces_PX: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    *,
    partials: Tensor,
    counters: Tensor,
    num_programs: int,
    config: AttentionConfig,
    split_tokens: int | None = None,
    out: Tensor,
) -> None:
    """Compute attention of the rows that have pieces: out[T, N, H]; other rows are left alone.

    `work` says how many pieces of the list there are (see attention/work.py), which `num_programs` programs of each key
    head share out: any number will do. For `partials` and `counters` see `piece_scratch_sizes`. The cache may be of
    type float8_e4m3fn. With `split_tokens`, a multiple of `config.block_n`, the order of summation is that of
    deterministic attention: see `decode_attention`.
    """
    num_heads, head_dim, num_kv_heads = *q_TNH.shape[1:], k_cache_BKGH.shape[2]
    group = num_heads // num_kv_heads
    check_layout(q_TNH, k_cache_BKGH, v_cache_BKGH, scale, softcap, config, split_tokens, out=out)
    qk_scale, cap_scale = score_scales(scale, softcap)
    _piece_kernel[num_kv_heads, num_programs](
        q_TNH, k_cache_BKGH, v_cache_BKGH, out, partials, counters, block_tables_SB, positions_T, state_rows_T, work,
        pieces_PX, block_tables_SB.stride(0), qk_scale, group, head_dim,
        k_cache_BKGH.shape[1], q_TNH.stride(0), out.stride(0), k_cache_BKGH.stride(0), k_cache_BKGH.stride(1),
        k_cache_BKGH.stride(2), triton.next_power_of_2(head_dim), config.block_m, config.block_n, window or 0,
        cap_scale, split_tokens or 0, is_interpreting(), num_warps=config.num_warps, num_stages=config.num_stages,
        **launch_options(),
    )  # fmt: skip
