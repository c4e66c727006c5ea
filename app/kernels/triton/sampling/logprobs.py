"""Log-probabilities of sampled tokens and of the best ones: the log-softmax of the raw logits, in two launches.

The first goes through blocks of a row's logits: the sum of exponentials, how many logits are larger than the sampled
token's, and the block's best ones, one after the other. The second merges the blocks of a row. The order among tokens
is that of their logits: two that differ keep it even where their log-probabilities round to the same number.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.contract.sampling_params import MAX_LOGPROBS
from app.kernels.triton import row_layout
from app.kernels.triton.dependent import launch_options, wait_for_previous
from app.kernels.triton.rows import programs_per_row, this_sample

FLAGS = tl.constexpr(row_layout.FLAGS)
NUM_LOGPROBS = tl.constexpr(row_layout.NUM_LOGPROBS)
LOGPROBS = tl.constexpr(row_layout.LOGPROBS)
LARGEST = tl.constexpr(3.4028234663852886e38)
# A block's top, sum of exponentials, number of larger logits, and whether it has one that is no finite number; then
# its best logits and their ids.
TOP = tl.constexpr(0)
TOTAL = tl.constexpr(1)
NUM_LARGER = tl.constexpr(2)
IS_BROKEN = tl.constexpr(3)
BEST = tl.constexpr(4)
MAX_BEST = tl.constexpr(MAX_LOGPROBS)
BLOCK_WIDTH = tl.constexpr(4 + 2 * MAX_LOGPROBS)

BLOCK = 4096


@triton.jit
def _finite(logits):
    """Return logits for the sum, which one broken logit would break for all."""
    return tl.minimum(tl.maximum(tl.where(logits != logits, -LARGEST, logits), -LARGEST), LARGEST)


@triton.jit
def _logprobs_blocks_kernel(
    logits, logits_stride, tokens, state, state_stride, sampled_rows, scratch, scratch_stride, width,
    BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    sample_index, row, params = this_sample(sampled_rows, state, state_stride)
    if row == 0:
        return
    if (tl.load(params + FLAGS) & LOGPROBS) == 0:
        return
    logits += sample_index * logits_stride
    sampled = _finite(tl.load(logits + tl.maximum(tl.load(tokens + sample_index), 0)))
    for block in range(tl.program_id(1), tl.cdiv(width, BLOCK), tl.num_programs(1)):
        block_scratch = scratch + sample_index * scratch_stride + block * BLOCK_WIDTH
        start = block * BLOCK
        ids = start + tl.arange(0, BLOCK)
        mask = ids < width
        raw = tl.load(logits + ids, mask=mask, other=0.0)
        is_broken = (raw != raw) | (raw == float("inf"))
        x = tl.where(mask, _finite(raw), float("-inf"))
        top = tl.max(x)
        total = tl.sum(tl.exp(x - top))
        tl.store(block_scratch + TOP, top.to(tl.int32, bitcast=True))
        tl.store(block_scratch + TOTAL, total.to(tl.int32, bitcast=True))
        tl.store(block_scratch + NUM_LARGER, tl.sum((x > sampled).to(tl.int32)))
        tl.store(block_scratch + IS_BROKEN, tl.max(is_broken.to(tl.int32)))
        for number in range(tl.load(params + NUM_LOGPROBS)):
            best, index = tl.max(x, axis=0, return_indices=True)  # the lowest of equals
            tl.store(block_scratch + BEST + number, best.to(tl.int32, bitcast=True))
            tl.store(block_scratch + BEST + MAX_BEST + number, start + index)
            x = tl.where(ids == start + index, float("-inf"), x)


@triton.jit
def _merged_blocks(scratch, num_blocks, BLOCKS: tl.constexpr):
    """Return a row's largest logit, the logarithm of its sum of exponentials, how many are larger, if any is broken."""
    block = tl.arange(0, BLOCKS)
    mask = block < num_blocks
    blocks = scratch + block * BLOCK_WIDTH
    tops = tl.load(blocks + TOP, mask=mask, other=0).to(tl.float32, bitcast=True)
    tops = tl.where(mask, tops, -LARGEST)
    totals = tl.load(blocks + TOTAL, mask=mask, other=0).to(tl.float32, bitcast=True)
    top = tl.max(tops)
    log_total = tl.log(tl.sum(totals * tl.exp(tops - top)))
    num_larger = tl.sum(tl.load(blocks + NUM_LARGER, mask=mask, other=0))
    is_broken = tl.max(tl.load(blocks + IS_BROKEN, mask=mask, other=0)) > 0
    return top, log_total, num_larger, is_broken | (top == -LARGEST)


@triton.jit
def _logprob(x, top, log_total, is_broken):
    """Return a logit's log-probability; what was -inf stays so, unless the row is broken."""
    return tl.where((x > -LARGEST) | is_broken, x - top - log_total, float("-inf"))


@triton.jit
def _logprobs_rows_kernel(
    logits, logits_stride, tokens, state, state_stride, sampled_rows, scratch, scratch_stride, num_blocks,
    values_ring, values_ring_stride, values_stride, ids_ring, ids_ring_stride, ids_stride, ring_size, counter,
    BLOCKS: tl.constexpr, PLACES: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    sample_index, row, params = this_sample(sampled_rows, state, state_stride)
    if row == 0:
        return
    if (tl.load(params + FLAGS) & LOGPROBS) == 0:
        return
    scratch += sample_index * scratch_stride
    ring_index = (tl.load(counter) % ring_size).to(tl.int64)
    values = values_ring + ring_index * values_ring_stride + sample_index * values_stride
    ids = ids_ring + ring_index * ids_ring_stride + sample_index * ids_stride
    top, log_total, num_larger, is_broken = _merged_blocks(scratch, num_blocks, BLOCKS)
    sampled = _finite(tl.load(logits + sample_index * logits_stride + tl.maximum(tl.load(tokens + sample_index), 0)))
    tl.store(values, _logprob(sampled, top, log_total, is_broken))
    tl.store(ids, num_larger + 1)

    num_best = tl.load(params + NUM_LOGPROBS)
    index = tl.arange(0, BLOCKS * PLACES)
    best_of_blocks = scratch + BEST + index // PLACES * BLOCK_WIDTH + index % PLACES
    mask = (index // PLACES < num_blocks) & (index % PLACES < num_best)
    x = tl.load(best_of_blocks, mask=mask, other=0).to(tl.float32, bitcast=True)
    x = tl.where(mask, x, float("-inf"))
    for number in range(num_best):
        best, at = tl.max(x, axis=0, return_indices=True)  # the lowest id of equals: blocks and their best are in order
        best_id = tl.load(scratch + BEST + MAX_BEST + at // PLACES * BLOCK_WIDTH + at % PLACES)
        tl.store(values + 1 + number, _logprob(best, top, log_total, is_broken))
        tl.store(ids + 1 + number, tl.where(best > float("-inf"), best_id, -1))
        x = tl.where(index == at, float("-inf"), x)


def logprobs(
    logits_RV: Tensor,
    tokens_R: Tensor,
    state_SW: Tensor,
    sampled_rows_R: Tensor,
    *,
    scratch_RX: Tensor,
    values_ring_KRN: Tensor,
    ids_ring_KRN: Tensor,
    counter: Tensor,
) -> None:
    """Write the log-probabilities of the sampled tokens, and of the best ones, of rows with LOGPROBS.

    At index counter % K of the rings [K, R, 1 + MAX_LOGPROBS], float32 and int32: first the sampled token's value and
    its rank (1 + the number of larger logits), then NUM_LOGPROBS best ones, the lowest id first among equals (-1: there
    are no more tokens); what is behind them stays as it was. `logits_RV` are the raw logits, float32. `scratch_RX`,
    int32 [R, scratch_width(V) or more], may be that of `sample`. To be launched before `advance` counts the step.
    """
    count, width = logits_RV.shape
    num_blocks = triton.cdiv(width, BLOCK)
    assert scratch_RX.shape[1] >= num_blocks * BLOCK_WIDTH.value and logits_RV.stride(1) == 1
    assert values_ring_KRN.stride(2) == ids_ring_KRN.stride(2) == state_SW.stride(1) == scratch_RX.stride(1) == 1
    inputs = (
        logits_RV, logits_RV.stride(0), tokens_R, state_SW, state_SW.stride(0), sampled_rows_R, scratch_RX,
        scratch_RX.stride(0),
    )  # fmt: skip
    _logprobs_blocks_kernel[(count, programs_per_row(count, num_blocks))](
        *inputs, width, BLOCK=BLOCK, num_warps=8, **launch_options()
    )
    _logprobs_rows_kernel[(count,)](
        *inputs, num_blocks, values_ring_KRN, *values_ring_KRN.stride()[:2], ids_ring_KRN, *ids_ring_KRN.stride()[:2],
        len(values_ring_KRN), counter, BLOCKS=triton.next_power_of_2(num_blocks), PLACES=32, num_warps=4,
        **launch_options(),
    )  # fmt: skip
