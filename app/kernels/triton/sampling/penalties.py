"""Changes the logits of rows that ask for it: biases, penalties, masks, a minimum length; all rows in one launch.

The order is the sampler's: bias; repetition, presence and frequency penalties; what is no number becomes impossible,
and so does what the mask of the sample forbids; endings are impossible before the minimum length. Temperature comes
later. Each program writes blocks of a row: a block, then its few tokens with a bias once more, then the endings; the
raw logits stay, for they give the log-probabilities.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton import row_layout
from app.kernels.triton.dependent import launch_options, wait_for_previous
from app.kernels.triton.rows import float_column, programs_per_row, sampled_position, this_sample
from app.kernels.triton.sampling.sample import nan_to_num

FLAGS = tl.constexpr(row_layout.FLAGS)
REPETITION = tl.constexpr(row_layout.REPETITION)
PRESENCE = tl.constexpr(row_layout.PRESENCE)
FREQUENCY = tl.constexpr(row_layout.FREQUENCY)
NUM_PROMPT = tl.constexpr(row_layout.NUM_PROMPT)
MIN_TOKENS = tl.constexpr(row_layout.MIN_TOKENS)
NUM_BIASES = tl.constexpr(row_layout.NUM_BIASES)
NUM_ENDINGS = tl.constexpr(row_layout.NUM_ENDINGS)
BIAS_IDS = tl.constexpr(row_layout.BIAS_IDS)
BIASES = tl.constexpr(row_layout.BIASES)
ENDINGS = tl.constexpr(row_layout.ENDINGS)
CHANGES_LOGITS = tl.constexpr(row_layout.CHANGES_LOGITS)
PENALIZES = tl.constexpr(row_layout.PENALIZES)
MASKS = tl.constexpr(row_layout.MASKS)
MAX_BIASES = tl.constexpr(triton.next_power_of_2(row_layout.MAX_BIASES))
MAX_ENDINGS = tl.constexpr(triton.next_power_of_2(row_layout.MAX_ENDINGS))

BLOCK = 4096


@triton.jit
def _penalized(logits, params, seen, ids, mask):
    """Return logits after the penalties; `seen` counts a token of the answer as 2 and one of the prompt as 1."""
    if (tl.load(params + FLAGS) & PENALIZES) != 0:
        count = tl.load(seen + ids, mask=mask, other=0).to(tl.int32)
        repetition = float_column(params, REPETITION)
        divisor = tl.zeros_like(logits) + repetition
        repeated = tl.where(logits > 0.0, tl.div_rn(logits, divisor), logits * repetition)
        logits = tl.where(count > 0, repeated, logits)
        times = (count >> 1).to(tl.float32)
        penalty = float_column(params, PRESENCE) + float_column(params, FREQUENCY) * times
        logits = tl.where(times > 0.0, logits - penalty, logits)
    return nan_to_num(logits)


@triton.jit
def _allowed(logits, params, masks, mask_stride, mask_rows, sample_index, ids, mask):
    """Return logits that are impossible where the mask of the sample has no bit; without a mask they stay."""
    if (tl.load(params + FLAGS) & MASKS) != 0:
        row = tl.load(mask_rows + sample_index)
        if row > 0:
            words = tl.load(masks + (row - 1) * mask_stride + (ids >> 5), mask=mask, other=0)
            logits = tl.where(((words >> (ids & 31)) & 1) != 0, logits, float("-inf"))
    return logits


@triton.jit
def _write_biased(logits, params, seen, masks, mask_stride, mask_rows, sample_index, out, start, end):
    """Write the tokens from `start` to `end` that have a bias."""
    count = tl.load(params + NUM_BIASES)
    if count > 0:
        offsets = tl.arange(0, MAX_BIASES)
        ids = tl.load(params + BIAS_IDS + offsets, mask=offsets < count, other=-1)
        mask = (ids >= start) & (ids < end)
        bias = tl.load(params + BIASES + offsets, mask=mask, other=0).to(tl.float32, bitcast=True)
        biased = tl.load(logits + ids, mask=mask, other=0.0) + bias
        tl.debug_barrier()  # other threads have written these logits, without the bias
        x = _penalized(biased, params, seen, ids, mask)
        tl.store(out + ids, _allowed(x, params, masks, mask_stride, mask_rows, sample_index, ids, mask), mask=mask)


@triton.jit
def _penalties_kernel(
    logits, logits_stride, state, state_stride, seen, seen_stride, masks, mask_stride, mask_rows,
    sampled_rows, logit_rows, positions, out, out_stride, width, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    sample_index, row, params = this_sample(sampled_rows, state, state_stride)
    if row == 0:
        return
    if (tl.load(params + FLAGS) & CHANGES_LOGITS) == 0:
        return
    logits += sample_index * logits_stride
    seen += row * seen_stride
    out += sample_index * out_stride
    num_sampled = sampled_position(positions, logit_rows, sample_index) - tl.load(params + NUM_PROMPT)
    for start in range(tl.program_id(1) * BLOCK, width, tl.num_programs(1) * BLOCK):
        end = tl.minimum(start + BLOCK, width)
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(logits + ids, mask=ids < end, other=0.0)
        x = _penalized(x, params, seen, ids, ids < end)
        x = _allowed(x, params, masks, mask_stride, mask_rows, sample_index, ids, ids < end)
        tl.store(out + ids, x, mask=ids < end)
        _write_biased(logits, params, seen, masks, mask_stride, mask_rows, sample_index, out, start, end)
        if num_sampled < tl.load(params + MIN_TOKENS):
            offsets = tl.arange(0, MAX_ENDINGS)
            endings = tl.load(params + ENDINGS + offsets, mask=offsets < tl.load(params + NUM_ENDINGS), other=-1)
            tl.debug_barrier()
            tl.store(out + endings, float("-inf"), mask=(endings >= start) & (endings < end))


def apply_penalties(
    logits_RV: Tensor,
    state_SW: Tensor,
    seen_SV: Tensor,
    masks_RW: Tensor,
    mask_rows_R: Tensor,
    sampled_rows_R: Tensor,
    logit_rows_R: Tensor,
    positions_T: Tensor,
    *,
    out: Tensor,
) -> None:
    """Write out[R, V], float32: the changed logits of rows with CHANGES_LOGITS; other rows stay as they are.

    `seen_SV` counts, as int16, which tokens each state row has had. `mask_rows_R` is 1 + the row of `masks_RW`, a bit
    for each token, for samples of rows with MASKS; 0 for others. What must not be sampled is -inf, never NaN.
    """
    count, width = logits_RV.shape
    assert logits_RV.stride(1) == out.stride(1) == seen_SV.stride(1) == state_SW.stride(1) == 1
    _penalties_kernel[(count, programs_per_row(count, triton.cdiv(width, BLOCK)))](
        logits_RV, logits_RV.stride(0), state_SW, state_SW.stride(0), seen_SV, seen_SV.stride(0),
        masks_RW, masks_RW.stride(0), mask_rows_R, sampled_rows_R, logit_rows_R, positions_T, out, out.stride(0), width,
        BLOCK=BLOCK, num_warps=8,
        **launch_options(),
    )  # fmt: skip
