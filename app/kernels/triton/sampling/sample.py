"""Samples a token from each row of logits, by what its state row says: two launches for every mixture of parameters.

The first reads the logits once, in parallel. For rows that filter nothing, each block of the vocabulary finds its best
score. For rows with top-k, top-p or min-p it keeps its largest logits, up to a bound that it finds by bisection; blocks
are made of short segments from all over the vocabulary, for neighbouring ids are likely together. The second launch
has a program per row. The kept logits of all blocks that are above the largest bound are the row's largest: mostly
they suffice to find the thresholds of top-k and top-p, again by bisection, and the best score among what is left. If
they do not, the same search goes over the whole row. All sums are taken in an order that depends on the vocabulary's
size alone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton import row_layout
from app.kernels.triton.dependent import launch_options, wait_for_previous
from app.kernels.triton.rows import float_column, sampled_position, this_sample
from app.kernels.triton.sampling.noise import gumbel_noise

FLAGS = tl.constexpr(row_layout.FLAGS)
CHOICE = tl.constexpr(row_layout.CHOICE)
SEED_LOW = tl.constexpr(row_layout.SEED_LOW)
SEED_HIGH = tl.constexpr(row_layout.SEED_HIGH)
TEMPERATURE = tl.constexpr(row_layout.TEMPERATURE)
TOP_K = tl.constexpr(row_layout.TOP_K)
TOP_P = tl.constexpr(row_layout.TOP_P)
MIN_P = tl.constexpr(row_layout.MIN_P)
CHANGES_LOGITS = tl.constexpr(row_layout.CHANGES_LOGITS)
FILTERS = tl.constexpr(row_layout.FILTERS)
MASKS = tl.constexpr(row_layout.MASKS)
MIN_TEMPERATURE = tl.constexpr(row_layout.MIN_TEMPERATURE)
NO_TOKEN = tl.constexpr(row_layout.NO_TOKEN)
NO_ALLOWED_TOKEN = tl.constexpr(row_layout.NO_ALLOWED_TOKEN)
LARGEST = tl.constexpr(3.4028234663852886e38)
TINIEST = tl.constexpr(1e-38)  # so that no logarithm of 0 is taken
MOST = tl.constexpr(2**31 - 1)
# Of -inf among the integers that `_key` orders floats by.
LOWEST_KEY = tl.constexpr(-(2**31) + 0x7FFFFF)

BLOCK = 4096
SEGMENT = tl.constexpr(64)
# Logits that all blocks of a row keep together, in equal shares.
KEPT = 2048
MAX_ROUNDS = tl.constexpr(24)
# Logits of a row that the second launch looks at together, if it has to look at all.
ROW_BLOCK = 4096


def scratch_width(vocab: int) -> int:
    """Return how many int32 numbers `sample` and `logprobs` need for each row of logits."""
    return -(-(2 * KEPT + 3 * -(-vocab // BLOCK)) // 32) * 32


@triton.jit
def nan_to_num(logits):
    """Return logits in which what is no number cannot be sampled, and the largest number stands for infinity."""
    return tl.minimum(tl.where(logits != logits, float("-inf"), logits), LARGEST)


@triton.jit
def _scaled(logits, inverse_temperature):
    return nan_to_num(logits * inverse_temperature)


@triton.jit
def _key(x):
    """Return int32 numbers in the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """Return the float of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _is_filtering(params, width):
    """Return whether any of the row's filters does something."""
    top_k = tl.load(params + TOP_K)
    has_top_k = (top_k > 0) & (top_k < width)
    has_any = has_top_k | (float_column(params, TOP_P) < 1.0) | (float_column(params, MIN_P) > 0.0)
    return has_any & ((tl.load(params + FLAGS) & FILTERS) != 0) & (float_column(params, TEMPERATURE) > 0.0)


@triton.jit
def _inverse_temperature(params):
    """Return the factor of the logits: 12 instructions less than dividing each, and 1 for a temperature of 1."""
    return 1.0 / tl.maximum(float_column(params, TEMPERATURE), MIN_TEMPERATURE)


# --- First launch: blocks ------------------------------------------------------------------------------------------


@triton.jit
def _bound(x, top, SHARE: tl.constexpr):
    """Return a bound that at most SHARE of x are above, and if bisection finds one soon, not much fewer."""
    bound = top
    if tl.sum((x > float("-inf")).to(tl.int32)) <= SHARE:
        bound = float("-inf")
    else:
        low = tl.min(tl.where(x > float("-inf"), x, top))
        rounds = 0
        while rounds < MAX_ROUNDS:
            middle = 0.5 * low + 0.5 * bound
            count = tl.sum((x > middle).to(tl.int32))
            low = tl.where(count > SHARE, middle, low)
            bound = tl.where(count > SHARE, bound, middle)
            is_enough = (count <= SHARE) & (4 * count >= 3 * SHARE)
            rounds = tl.where(is_enough, MAX_ROUNDS, rounds + 1)
    return bound


@triton.jit
def _keep_largest(x, ids, scratch, block, num_blocks, KEPT: tl.constexpr, SHARE: tl.constexpr, TAIL: tl.constexpr):
    """Write a block's largest logits, its bound, its largest one, and the sum of exponentials relative to that."""
    top = tl.max(x)
    bound = _bound(x, top, SHARE)
    is_kept = x > bound
    offsets = tl.cumsum(is_kept.to(tl.int32)) - 1
    kept = scratch + block * SHARE
    tl.store(kept + offsets, x.to(tl.int32, bitcast=True), mask=is_kept)
    tl.store(kept + KEPT + offsets, ids, mask=is_kept)
    tail = tl.arange(0, TAIL)
    minus_infinity = tl.full([TAIL], float("-inf"), tl.float32).to(tl.int32, bitcast=True)
    tl.store(kept + tail, minus_infinity, mask=(tail >= tl.sum(is_kept.to(tl.int32))) & (tail < SHARE))
    total = tl.sum(tl.exp(x - tl.where(top > float("-inf"), top, 0.0)))
    blocks = scratch + 2 * KEPT + block
    tl.store(blocks, top.to(tl.int32, bitcast=True))
    tl.store(blocks + num_blocks, total.to(tl.int32, bitcast=True))
    tl.store(blocks + 2 * num_blocks, bound.to(tl.int32, bitcast=True))


@triton.jit
def _noise_of(params, positions, logit_rows, sample_index, tokens):
    """Return the noise of a sample for some tokens."""
    position = sampled_position(positions, logit_rows, sample_index)
    seed_low, seed_high = tl.load(params + SEED_LOW), tl.load(params + SEED_HIGH)
    return gumbel_noise(seed_low, seed_high, tl.load(params + CHOICE), position, tokens)


@triton.jit
def _sample_blocks_kernel(
    logits, logits_stride, adjusted, adjusted_stride, state, state_stride, sampled_rows, logit_rows, positions,
    scratch, scratch_stride, width, num_blocks,
    BLOCK: tl.constexpr, KEPT: tl.constexpr, SHARE: tl.constexpr, TAIL: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    sample_index, row, params = this_sample(sampled_rows, state, state_stride)
    block = tl.program_id(1)
    if row == 0:
        return
    scratch += sample_index * scratch_stride
    offset = tl.arange(0, BLOCK)
    ids = (offset // SEGMENT * num_blocks + block) * SEGMENT + offset % SEGMENT
    mask = ids < width
    if (tl.load(params + FLAGS) & CHANGES_LOGITS) != 0:
        x = tl.load(adjusted + sample_index * adjusted_stride + ids, mask=mask, other=float("-inf"))
    else:
        x = tl.load(logits + sample_index * logits_stride + ids, mask=mask, other=float("-inf"))
    if _is_filtering(params, width):
        x = _scaled(x, _inverse_temperature(params))
        _keep_largest(x, ids, scratch, block, num_blocks, KEPT, SHARE, TAIL)
    else:
        if float_column(params, TEMPERATURE) == 0.0:
            x = tl.where(x != x, float("-inf"), x)
        else:
            x = _scaled(x, _inverse_temperature(params)) + _noise_of(params, positions, logit_rows, sample_index, ids)
        best, index = tl.max(x, axis=0, return_indices=True)  # the lowest of equals: ids ascend
        token = (index // SEGMENT * num_blocks + block) * SEGMENT + index % SEGMENT
        blocks = scratch + 2 * KEPT + block
        tl.store(blocks, best.to(tl.int32, bitcast=True))
        tl.store(blocks + num_blocks, token)


# --- Second launch: rows -------------------------------------------------------------------------------------------


@triton.jit
def _part(values, start, count, inverse, IS_ROW: tl.constexpr, BLOCK: tl.constexpr):
    """Return a part of a list of logits: of a whole row, still to be scaled, or of those that the blocks have kept."""
    offsets = start + tl.arange(0, BLOCK)
    x = tl.load(values + offsets, mask=offsets < count, other=float("-inf"))
    return _scaled(x, inverse) if IS_ROW else x


@triton.jit
def _mass(values, count, inverse, top, floor, IS_ROW: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sum of the exponentials, relative to `top`, of those in a list that are at least `floor`."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, count, BLOCK, num_stages=4 if IS_ROW else 1):
        x = _part(values, start, count, inverse, IS_ROW, BLOCK)
        mass += tl.where(x >= floor, tl.exp(x - top), 0.0)
    return tl.sum(mass)


@triton.jit
def _threshold(
    values, count, inverse, top, target, IS_MASS: tl.constexpr, IS_ROW: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the largest logit of a list such that those from it on reach `target`; -inf if all of them do not.

    Counted is their number, or the sum of their exponentials relative to `top`. Bisects the keys that can be the
    threshold; both ends stay keys of the list, so a round takes away half of the keys between and all gaps.
    """
    low, high = LOWEST_KEY, _key(top)
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)
        weights = tl.zeros([BLOCK], tl.float32)
        above = tl.full([BLOCK], MOST, tl.int32)
        below = tl.full([BLOCK], LOWEST_KEY, tl.int32)
        for start in tl.range(0, count, BLOCK, num_stages=4 if IS_ROW else 1):
            x = _part(values, start, count, inverse, IS_ROW, BLOCK)
            key = _key(x)
            is_above = key > middle
            above = tl.where(is_above, tl.minimum(above, key), above)
            below = tl.where(is_above, below, tl.maximum(below, key))
            weights += tl.where(is_above, tl.exp(x - top) if IS_MASS else 1.0, 0.0)
        is_reached = tl.sum(weights) >= target
        low = tl.where(is_reached, tl.minimum(tl.min(above), high), low)
        high = tl.where(is_reached, high, tl.max(below))
    return _value(low)


@triton.jit
def _sample_from(
    values, tokens, count, params, positions, logit_rows, sample_index, top, total, width,
    IS_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Filter a list of logits and return the token with the best score among what is left."""
    inverse = _inverse_temperature(params)
    top_k, top_p = tl.load(params + TOP_K), float_column(params, TOP_P)
    threshold = top + tl.log(tl.maximum(float_column(params, MIN_P), TINIEST))
    threshold = tl.where(float_column(params, MIN_P) > 0.0, threshold, float("-inf"))
    if (top_k > 0) & (top_k < width):
        floor = _threshold(values, count, inverse, top, top_k.to(tl.float32), False, IS_ROW, BLOCK)
        threshold = tl.maximum(threshold, floor)
        total = _mass(values, count, inverse, top, floor, IS_ROW, BLOCK)
    if top_p < 1.0:
        floor = _threshold(values, count, inverse, top, top_p * total, True, IS_ROW, BLOCK)
        threshold = tl.maximum(threshold, floor)
    return _best_of(values, tokens, count, params, positions, logit_rows, sample_index, threshold, IS_ROW, BLOCK)


@triton.jit
def _best_of(
    values, tokens, count, params, positions, logit_rows, sample_index, threshold,
    IS_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the token with the best score among those with logits from `threshold` on; the lowest one of equals."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_token = tl.full([BLOCK], MOST, tl.int32)
    for start in tl.range(0, count, BLOCK, num_stages=4 if IS_ROW else 1):
        x = _part(values, start, count, _inverse_temperature(params), IS_ROW, BLOCK)
        if tl.max(x) >= threshold:
            token = start + tl.arange(0, BLOCK)
            if not IS_ROW:
                token = tl.load(tokens + token, mask=token < count, other=MOST)
            score = x + _noise_of(params, positions, logit_rows, sample_index, token)
            is_better = (score > best) | ((score == best) & (token < best_token))
            is_better = is_better & (x >= threshold) & (x > float("-inf"))
            best = tl.where(is_better, score, best)
            best_token = tl.where(is_better, token, best_token)
    token = tl.min(tl.where(best == tl.max(best), best_token, MOST))
    return tl.where(token == MOST, NO_TOKEN, token)


@triton.jit
def _are_enough(kept, count, params, top, total, bound, width, KEPT: tl.constexpr):
    """Return whether the logits that the blocks have kept, complete above `bound`, hold all that the filters leave."""
    top_k, top_p, min_p = tl.load(params + TOP_K), float_column(params, TOP_P), float_column(params, MIN_P)
    x = _part(kept, 0, count, 1.0, False, KEPT)
    number = tl.sum((x > bound).to(tl.int32))
    mass = tl.sum(tl.where(x > bound, tl.exp(x - top), 0.0))
    has_mass = (top_p < 1.0) & (mass >= top_p * total)
    has_floor = (min_p > 0.0) & (top + tl.log(tl.maximum(min_p, TINIEST)) > bound)
    has_top_k = (top_k > 0) & (top_k < width)
    return (bound == float("-inf")) | tl.where(has_top_k, number >= top_k, has_mass | has_floor)


@triton.jit
def _has_number(logits, width, BLOCK: tl.constexpr):
    """Return whether any of a row's raw logits can be sampled."""
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, width, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, nan_to_num(tl.load(logits + ids, mask=ids < width, other=float("-inf"))))
    return tl.max(largest) > float("-inf")


@triton.jit
def _sample_rows_kernel(
    logits, logits_stride, adjusted, adjusted_stride, state, state_stride, sampled_rows, logit_rows, positions,
    scratch, scratch_stride, tokens, width, num_blocks,
    BLOCKS: tl.constexpr, KEPT: tl.constexpr, ROW_BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    sample_index, row, params = this_sample(sampled_rows, state, state_stride)
    if row == 0:
        tl.store(tokens + sample_index, 0)
        return
    scratch += sample_index * scratch_stride
    block = tl.arange(0, BLOCKS)
    blocks, mask = scratch + 2 * KEPT + block, block < num_blocks
    tops = tl.load(blocks, mask=mask, other=0).to(tl.float32, bitcast=True)
    tops = tl.where(mask, tops, float("-inf"))
    top = tl.max(tops)
    if _is_filtering(params, width):
        top = tl.where(top > float("-inf"), top, 0.0)  # no difference of infinities
        totals = tl.load(blocks + num_blocks, mask=mask, other=0).to(tl.float32, bitcast=True)
        total = tl.sum(totals * tl.exp(tops - top))
        bounds = tl.load(blocks + 2 * num_blocks, mask=mask, other=0).to(tl.float32, bitcast=True)
        bound = tl.max(tl.where(mask, bounds, float("-inf")))
        values = scratch.to(tl.pointer_type(tl.float32), bitcast=True)
        count = num_blocks * (KEPT // num_blocks)
        if _are_enough(values, count, params, top, total, bound, width, KEPT):
            token = _sample_from(
                values, scratch + KEPT, count, params, positions, logit_rows, sample_index, top, total, width,
                False, KEPT,
            )  # fmt: skip
        else:
            if (tl.load(params + FLAGS) & CHANGES_LOGITS) != 0:
                values = adjusted + sample_index * adjusted_stride
            else:
                values = logits + sample_index * logits_stride
            token = _sample_from(
                values, scratch, width, params, positions, logit_rows, sample_index, top, total, width, True, ROW_BLOCK
            )
    else:
        best_tokens = tl.load(blocks + num_blocks, mask=mask, other=MOST)
        token = tl.min(tl.where((tops == top) & mask, best_tokens, MOST))
        token = tl.where(top > float("-inf"), token, NO_TOKEN)
    if (token == NO_TOKEN) & ((tl.load(params + FLAGS) & MASKS) != 0):
        has_number = _has_number(logits + sample_index * logits_stride, width, ROW_BLOCK)
        token = tl.where(has_number, NO_ALLOWED_TOKEN, NO_TOKEN)
    tl.store(tokens + sample_index, token)


def sample(
    logits_RV: Tensor,
    adjusted_RV: Tensor,
    state_SW: Tensor,
    sampled_rows_R: Tensor,
    logit_rows_R: Tensor,
    positions_T: Tensor,
    *,
    scratch_RX: Tensor,
    tokens_R: Tensor,
) -> None:
    """Write the token that each row of logits gives: tokens[R], 0 where nothing is sampled (state row 0).

    A row without any number, NaN or -inf throughout, gives NO_TOKEN, -1; one with MASKS that has a number, but none
    among the allowed tokens, NO_ALLOWED_TOKEN, -2.

    The logits, float32 [R, V], are those in `adjusted_RV` for rows with CHANGES_LOGITS. The token of row i stands one
    behind the position of token row logit_rows[i]. `scratch_RX` is int32 [R, scratch_width(V) or more].
    """
    count, width = logits_RV.shape
    assert logits_RV.stride(1) == adjusted_RV.stride(1) == state_SW.stride(1) == scratch_RX.stride(1) == 1
    assert scratch_RX.shape[1] >= scratch_width(width)
    num_blocks = triton.cdiv(width, BLOCK)
    inputs = (
        logits_RV, logits_RV.stride(0), adjusted_RV, adjusted_RV.stride(0), state_SW, state_SW.stride(0),
        sampled_rows_R, logit_rows_R, positions_T, scratch_RX, scratch_RX.stride(0),
    )  # fmt: skip
    share = KEPT // num_blocks
    _sample_blocks_kernel[(count, num_blocks)](
        *inputs, width, num_blocks, BLOCK=BLOCK, KEPT=KEPT, SHARE=share, TAIL=triton.next_power_of_2(share),
        num_warps=8, **launch_options(),
    )  # fmt: skip
    _sample_rows_kernel[(count,)](
        *inputs, tokens_R, width, num_blocks, BLOCKS=triton.next_power_of_2(num_blocks), KEPT=KEPT, ROW_BLOCK=ROW_BLOCK,
        num_warps=8, **launch_options(),
    )  # fmt: skip
