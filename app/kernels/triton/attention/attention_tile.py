"""What both attention kernels share: a tile of query rows goes through a range of tokens of the paged cache.

Softmax online, over tiles of BLOCK_N tokens (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023). Tiles begin at
multiples of BLOCK_N counted from position 0, and the products and sums are written as explicit fused multiply-adds, so
that the compiler cannot round them otherwise in one kernel than in another: what a row gets depends on its own
position alone, neither on the other rows of its tile nor on whether a mask was needed for them. A tile of tokens that a
row does not see leaves its sums as they are, exactly.

The state of a tile of M rows is (top, total, acc): the largest score of each row in units of log2, the sum of
exp2(score - top), and the sum of the values weighted by that, all in float32.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.attention.attention_configs import AttentionConfig


@triton.jit
def empty_state(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the state of rows that have seen nothing."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    return top, total, tl.zeros([ROWS, WIDTH], tl.float32)


@triton.jit
def product_type(q, cache, UPCAST: tl.constexpr):
    """Return a tile of queries in the type that its products take: with a float8 cache float16, which that becomes at
    a fraction of the cost of bfloat16."""
    if UPCAST:
        return q.to(tl.float32)
    elif cache.dtype.element_ty.is_fp8():
        return q.to(tl.float16)
    else:
        return q


@triton.jit
def _finite(top):
    """Return 0 for a row that has seen nothing: -inf less -inf would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def merge_states(top, total, acc, top_next, total_next, acc_next):
    """Return the state after the tokens of both; one of them empty leaves the other's bits."""
    top_both = tl.maximum(top, top_next)
    base = _finite(top_both)
    old = tl.exp2(top - base)
    new = tl.exp2(top_next - base)
    total = tl.fma(total_next, new, total * old)
    acc = tl.fma(acc_next, new[:, None], acc * old[:, None])
    return top_both, total, acc


@triton.jit
def normalize(total, acc):
    """Return the attention of each row: zeros for a row that has seen nothing."""
    return acc * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]


@triton.jit
def attend_tokens(
    q, row_positions, top, total, acc, k_head, v_head, table, begin, end, first_position, last_position, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr,
):  # fmt: skip
    """Return the state after the tokens begin .. end - 1, of which each row takes those it sees.

    `q` [M, HEAD_DIM padded to a power of two] has the type that the products take. `row_positions` [M] lie between
    `first_position` and `last_position`, which rows have; other rows' results mean nothing. `k_head` and `v_head` point
    at the head's part of slot 0 of block 0, `table` at the sequence's first block. `begin` is a multiple of BLOCK_N.
    `score_scales` gives `qk_scale` and CAP_SCALE.
    """
    stop = tl.minimum(end, last_position + 1)
    width = tl.arange(0, q.shape[1])[None, :]
    index = tl.arange(0, BLOCK_N)
    index_block, index_slot = index // BLOCK_SIZE, index % BLOCK_SIZE * SLOT_STRIDE
    blocks = tl.load(table + (begin // BLOCK_SIZE + index_block), mask=begin + index < stop, other=0)
    for start in range(begin, stop, BLOCK_N):
        slots = blocks.to(tl.int64) * BLOCK_STRIDE + index_slot
        if BLOCK_N < BLOCK_SIZE:
            slots += start % BLOCK_SIZE * SLOT_STRIDE
        tokens = start + index
        exists = tokens < stop
        if WINDOW:
            exists = exists & (tokens > first_position - WINDOW)
        # One tile early: the keys' addresses must be known when their copies start, stages ahead of their use.
        tokens_next = start + BLOCK_N
        blocks = tl.load(table + (tokens_next // BLOCK_SIZE + index_block), mask=tokens_next + index < stop, other=0)
        # What lies behind the last token may be anything, NaN too: it is read as zeros.
        loaded = exists[:, None]
        if q.shape[1] != HEAD_DIM:
            loaded = loaded & (width < HEAD_DIM)
        k = tl.load(k_head + width + slots[:, None], mask=loaded, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if CAP_SCALE is not None:
            scores = 1.0 / (1.0 + tl.exp2(scores * CAP_SCALE))
        # One loop, not one for whole tiles and one for others, which would each have to fill the pipeline anew.
        if start + BLOCK_N > first_position + 1 or (WINDOW and start <= last_position - WINDOW):
            seen = tokens[None, :] <= row_positions[:, None]
            if WINDOW:
                seen = seen & (tokens[None, :] > row_positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        top_next = tl.maximum(top, tl.max(scores, 1) * qk_scale)
        base = _finite(top_next)
        weights = tl.exp2(tl.fma(scores, qk_scale, -base[:, None]))
        shrink = tl.exp2(top - base)
        total = tl.fma(total, shrink, tl.sum(weights, 1))
        v = tl.load(v_head + width + slots[:, None], mask=loaded, other=0.0).to(q.dtype)
        acc = tl.dot(weights.to(q.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = top_next
    return top, total, acc


@triton.jit
def attend_splits(
    q, row_positions, top, total, acc, k_head, v_head, table, origin, end, first_position, last_position, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, SLOT_STRIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, CAP_SCALE: tl.constexpr, SPLIT_TOKENS: tl.constexpr,
):  # fmt: skip
    """Return the state after the tokens origin .. end - 1: each split on its own, then merged.

    `origin` is a multiple of SPLIT_TOKENS, `end` one too or behind the last position. This is the order
    of summation of deterministic attention, in whichever kernel.
    """
    for split in range(origin, tl.minimum(end, last_position + 1), SPLIT_TOKENS):
        begin = tl.maximum(split, first_tile(first_position, BLOCK_N, WINDOW))
        top_split, total_split, acc_split = empty_state(q.shape[0], q.shape[1])
        top_split, total_split, acc_split = attend_tokens(
            q, row_positions, top_split, total_split, acc_split, k_head, v_head, table, begin, split + SPLIT_TOKENS,
            first_position, last_position, qk_scale,
            HEAD_DIM, BLOCK_SIZE, BLOCK_STRIDE, SLOT_STRIDE, BLOCK_N, WINDOW, CAP_SCALE,
        )  # fmt: skip
        top, total, acc = merge_states(top, total, acc, top_split, total_split, acc_split)
    return top, total, acc


@triton.jit
def first_tile(first_position, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Return where the first tile begins of which a row at `first_position` sees something."""
    if WINDOW:
        return tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        return 0


def score_scales(scale: float, softcap: float | None) -> tuple[float, float | None]:
    """Return `qk_scale`, after which a score is in units of log2, and CAP_SCALE: what comes before a cap, if any.

    The score of a product s of query and key is scale · s, or softcap · tanh(scale · s / softcap). That is softcap ·
    (2 / (1 + exp(-2 · scale · s / softcap)) - 1), of which the last term changes no weight of a softmax.
    """
    if softcap is None:
        return scale * math.log2(math.e), None
    return 2 * softcap * math.log2(math.e), -2 * math.log2(math.e) * scale / softcap


def check_layout(
    q_TNH: Tensor,
    k_cache_BKGH: Tensor,
    v_cache_BKGH: Tensor,
    scale: float,
    softcap: float | None,
    config: AttentionConfig,
    split_tokens: int | None,
    *,
    out: Tensor,
) -> None:
    """Assert what all attention kernels take for granted about their tensors, scales and splits."""
    num_heads, head_dim = q_TNH.shape[1:]
    assert k_cache_BKGH.stride() == v_cache_BKGH.stride() and k_cache_BKGH.stride(3) == 1
    assert q_TNH.stride()[1:] == out.stride()[1:] == (head_dim, 1)
    assert num_heads // k_cache_BKGH.shape[2] <= config.block_m
    assert scale > 0 and (softcap is None or softcap > 0) and not (split_tokens or 0) % config.block_n
