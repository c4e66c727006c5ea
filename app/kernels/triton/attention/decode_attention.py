"""Attention of decode steps: every row is a sequence of its own, with its whole context in the paged cache.

The context is cut into splits (split-KV: Flash-Decoding, Dao et al. 2023), one program each, or a long context would
keep one multiprocessor busy and the others idle. All query heads of one key head share a program, so that each key is
read once. The splits' states are merged in their order by whichever program of the row arrives last; that saves a
launch per layer against a second kernel, which does the same for `one_launch=False`.

Deterministic attention: the splits have a fixed size. Every row is then summed in one order, here and in
`prefill_attention`; with the same config also by the same instructions, which gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

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

MERGED_TOGETHER = tl.constexpr(8)


@triton.jit
def _plan_splits(position, NUM_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
                 SPLIT_TOKENS: tl.constexpr, MIN_TOKENS: tl.constexpr):  # fmt: skip
    """Return where a row's first split begins, the splits' size and their number; padding has one empty split.

    Where one program goes through all splits of fixed size, they count as one.
    """
    begin = first_tile(position, BLOCK_N, WINDOW)
    if SPLIT_TOKENS:
        origin = begin // SPLIT_TOKENS * SPLIT_TOKENS
        size = SPLIT_TOKENS
    else:
        origin = begin
        size = tl.cdiv(tl.cdiv(position + 1 - begin, NUM_SPLITS), BLOCK_N) * BLOCK_N
        size = tl.maximum(size, MIN_TOKENS)
    return origin, size, 1 if NUM_SPLITS == 1 else tl.maximum(tl.cdiv(position + 1 - origin, size), 1)


@triton.jit
def _load_query(q_row, cache, ROWS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
                UPCAST: tl.constexpr):  # fmt: skip
    """Return the query heads of one key head as a tile of ROWS rows, of which GROUP are real."""
    rows, width = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    q = tl.load(q_row + rows * HEAD_DIM + width, mask=(rows < GROUP) & (width < HEAD_DIM), other=0.0)
    return product_type(q, cache, UPCAST)


@triton.jit
def _store_output(out_row, total, acc, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Store the attention of the GROUP query heads of one key head."""
    rows, width = tl.arange(0, acc.shape[0])[:, None], tl.arange(0, acc.shape[1])[None, :]
    result = normalize(total, acc).to(out_row.dtype.element_ty)
    tl.store(out_row + rows * HEAD_DIM + width, result, mask=(rows < GROUP) & (width < HEAD_DIM))


@triton.jit
def _partial(partials, item, head, split, NUM_SPLITS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return where a split's sums [GROUP, HEAD_DIM] are in the scratch, and its tops and totals [GROUP, 2]."""
    num_rows = tl.num_programs(1).to(tl.int64) * tl.num_programs(2) * NUM_SPLITS * GROUP
    row = ((item * tl.num_programs(1) + head).to(tl.int64) * NUM_SPLITS + split) * GROUP
    return partials + row * HEAD_DIM, partials + num_rows * HEAD_DIM + row * 2


@triton.jit
def _merge_splits(
    q_row, out_row, k_head, v_head, table, partials, item, head, position, origin, count, qk_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr, WIDTH: tl.constexpr, MERGE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr, SPLIT_TOKENS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Merge a row's splits in their order and store its attention.

    Splits of fixed size may be more than there are programs: those that nobody took are gone through here.
    """
    TOGETHER: tl.constexpr = min(NUM_SPLITS, MERGED_TOGETHER)
    rows, width = tl.arange(0, MERGE_ROWS), tl.arange(0, WIDTH)
    real = rows < GROUP
    stored = real[:, None] & (width < HEAD_DIM)[None, :]
    top, total, acc = empty_state(MERGE_ROWS, WIDTH)
    num_partials = tl.minimum(count, NUM_SPLITS)
    offsets = rows[:, None] * HEAD_DIM + width[None, :]
    for begin in range(0, num_partials, TOGETHER):
        for i in tl.static_range(TOGETHER):  # several loads under way at once; absent states are empty ones
            exists = begin + i < num_partials
            sums, tops = _partial(partials, item, head, begin + i, NUM_SPLITS, GROUP, HEAD_DIM)
            # Other multiprocessors wrote them: not from this one's own cache.
            top_split = tl.load(tops + rows * 2, mask=real & exists, other=float("-inf"), cache_modifier=".cg")
            total_split = tl.load(tops + rows * 2 + 1, mask=real & exists, other=0.0, cache_modifier=".cg")
            acc_split = tl.load(sums + offsets, mask=stored & exists, other=0.0, cache_modifier=".cg")
            top, total, acc = merge_states(top, total, acc, top_split, total_split, acc_split)
    if SPLIT_TOKENS:
        top, total, acc = attend_splits(
            _load_query(q_row, k_head, MERGE_ROWS, GROUP, HEAD_DIM, WIDTH, UPCAST), rows * 0 + position,
            top, total, acc, k_head, v_head, table, origin + NUM_SPLITS * SPLIT_TOKENS, position + 1, position,
            position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE, SPLIT_TOKENS,
        )  # fmt: skip
    _store_output(out_row, total, acc, GROUP, HEAD_DIM)


@triton.jit
def _decode_kernel(
    q, k_cache, v_cache, out, partials, counters, tables, positions, state_rows, table_stride, qk_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROW_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, MERGE_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, NUM_SPLITS: tl.constexpr, MIN_TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    CAP_SCALE: tl.constexpr, SPLIT_TOKENS: tl.constexpr, ONE_LAUNCH: tl.constexpr, UPCAST: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    # A row's splits are neighbours: those that are not needed end among programs that have something to do, and what
    # the others leave in the L2 cache is merged before it leaves that.
    split, head, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position, state_row = tl.load(positions + item), tl.load(state_rows + item)
    origin, size, count = _plan_splits(position, NUM_SPLITS, BLOCK_N, WINDOW, SPLIT_TOKENS, MIN_TOKENS)
    if split >= count:
        return
    q_row = q + item.to(tl.int64) * ROW_STRIDE + head * GROUP * HEAD_DIM
    out_row = out + item.to(tl.int64) * OUT_STRIDE + head * GROUP * HEAD_DIM
    k_head, v_head = k_cache + head * HEAD_STRIDE, v_cache + head * HEAD_STRIDE
    table = tables + state_row.to(tl.int64) * table_stride
    rows, width = tl.arange(0, BLOCK_M), tl.arange(0, WIDTH)
    begin = origin + split * size
    query = _load_query(q_row, k_cache, BLOCK_M, GROUP, HEAD_DIM, WIDTH, UPCAST)
    top, total, acc = empty_state(BLOCK_M, WIDTH)
    if SPLIT_TOKENS and NUM_SPLITS == 1:
        top, total, acc = attend_splits(
            query, rows * 0 + position, top, total, acc, k_head, v_head, table, begin, position + 1, position, position,
            qk_scale, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE, SPLIT_TOKENS,
        )  # fmt: skip
    else:
        top, total, acc = attend_tokens(
            query, rows * 0 + position, top, total, acc, k_head, v_head, table,
            tl.maximum(begin, first_tile(position, BLOCK_N, WINDOW)), begin + size, position, position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE,
        )  # fmt: skip
    if count == 1:
        _store_output(out_row, total, acc, GROUP, HEAD_DIM)
        return
    sums, tops = _partial(partials, item, head, split, NUM_SPLITS, GROUP, HEAD_DIM)
    stored = (rows < GROUP)[:, None] & (width < HEAD_DIM)[None, :]
    tl.store(sums + rows[:, None] * HEAD_DIM + width[None, :], acc, mask=stored)
    tl.store(tops + rows * 2, top, mask=rows < GROUP)
    tl.store(tops + rows * 2 + 1, total, mask=rows < GROUP)
    if ONE_LAUNCH:
        tl.debug_barrier()  # all threads have stored their part before one of them says so
        counter = counters + item * tl.num_programs(1) + head
        if tl.atomic_add(counter, 1, sem="acq_rel") + 1 == tl.minimum(count, NUM_SPLITS):
            tl.store(counter, 0)
            _merge_splits(
                q_row, out_row, k_head, v_head, table, partials, item, head, position, origin, count, qk_scale,
                GROUP, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, WIDTH, MERGE_ROWS, BLOCK_N,
                NUM_SPLITS, WINDOW, CAP_SCALE, SPLIT_TOKENS, UPCAST,
            )  # fmt: skip


@triton.jit
def _merge_kernel(
    q, k_cache, v_cache, out, partials, tables, positions, state_rows, table_stride, qk_scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROW_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr, WIDTH: tl.constexpr, MERGE_ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr, MIN_TOKENS: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    head, item = tl.program_id(1), tl.program_id(2)
    position, state_row = tl.load(positions + item), tl.load(state_rows + item)
    origin, _, count = _plan_splits(position, NUM_SPLITS, BLOCK_N, WINDOW, SPLIT_TOKENS, MIN_TOKENS)
    if count == 1:
        return
    q_row = q + item.to(tl.int64) * ROW_STRIDE + head * GROUP * HEAD_DIM
    out_row = out + item.to(tl.int64) * OUT_STRIDE + head * GROUP * HEAD_DIM
    k_head, v_head = k_cache + head * HEAD_STRIDE, v_cache + head * HEAD_STRIDE
    table = tables + state_row.to(tl.int64) * table_stride
    _merge_splits(
        q_row, out_row, k_head, v_head, table, partials, item, head, position, origin, count, qk_scale,
        GROUP, HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, WIDTH, MERGE_ROWS, BLOCK_N, NUM_SPLITS, WINDOW,
        CAP_SCALE, SPLIT_TOKENS, UPCAST,
    )  # fmt: skip


def scratch_sizes(max_rows: int, num_heads: int, num_kv_heads: int, head_dim: int, num_splits: int) -> tuple[int, int]:
    """Return the float32 numbers of `partials` and the int32 numbers of `counters` that a launch needs at most.

    The counters must be zeros before the first launch; each launch leaves
    zeros. Launches that may run at the same time need scratch of their own.
    """
    return max_rows * num_heads * num_splits * (head_dim + 2), max_rows * num_kv_heads


def decode_attention(
    q_TNH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    block_tables_SB: Tensor,
    positions_T: Tensor,
    state_rows_T: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    *,
    partials: Tensor,
    counters: Tensor,
    num_splits: int,
    config: AttentionConfig,
    min_tokens: int = 1,
    split_tokens: int | None = None,
    one_launch: bool = True,
    out: Tensor,
) -> None:
    """Compute attention of every row, each of another sequence: out[T, N, H].

    A row at position -1 gets zeros. The cache may be of type float8_e4m3fn. For `partials` and `counters` see
    `scratch_sizes`.

    A context is cut into at most `num_splits` splits of at least `min_tokens`. With `split_tokens`, a multiple of
    `config.block_n`, they have that size, and what lies behind the last of them is gone through by one program, which
    is right but slow: then `num_splits` · `split_tokens` should not be far below the longest context.
    """
    num_rows, num_heads, head_dim, num_kv_heads = *q_TNH.shape, k_cache_BKGH.shape[2]
    group = num_heads // num_kv_heads
    needed = scratch_sizes(num_rows, num_heads, num_kv_heads, head_dim, num_splits)
    assert partials.numel() >= needed[0] and (counters.numel() >= needed[1] or not one_launch)
    check_layout(q_TNH, k_cache_BKGH, v_cache_BKGH, scale, softcap, config, split_tokens, out=out)
    rows = (block_tables_SB, positions_T, state_rows_T, block_tables_SB.stride(0))
    qk_scale, cap_scale = score_scales(scale, softcap)
    constants = {
        "GROUP": group, "HEAD_DIM": head_dim,
        "BLOCK_SIZE": k_cache_BKGH.shape[1], "ROW_STRIDE": q_TNH.stride(0), "OUT_STRIDE": out.stride(0),
        "BLOCK_STRIDE": k_cache_BKGH.stride(0), "SLOT_STRIDE": k_cache_BKGH.stride(1),
        "HEAD_STRIDE": k_cache_BKGH.stride(2), "WIDTH": triton.next_power_of_2(head_dim),
        "MERGE_ROWS": config.block_m if split_tokens else triton.next_power_of_2(group), "BLOCK_N": config.block_n,
        "NUM_SPLITS": num_splits, "WINDOW": window or 0, "CAP_SCALE": cap_scale,
        "MIN_TOKENS": triton.cdiv(min_tokens, config.block_n) * config.block_n,
        "SPLIT_TOKENS": split_tokens or 0, "UPCAST": is_interpreting(),
        "num_warps": config.num_warps, "num_stages": config.num_stages, **launch_options(),
    }  # fmt: skip
    _decode_kernel[num_splits, num_kv_heads, num_rows](
        q_TNH, k_cache_BKGH, v_cache_BKGH, out, partials, counters, *rows, qk_scale,
        BLOCK_M=config.block_m, ONE_LAUNCH=one_launch, **constants,
    )  # fmt: skip
    if not one_launch:
        _merge_kernel[1, num_kv_heads, num_rows](
            q_TNH, k_cache_BKGH, v_cache_BKGH, out, partials, *rows, qk_scale, **constants
        )
