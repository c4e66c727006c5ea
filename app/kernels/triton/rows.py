"""Keeps the state rows of running sequences: changes of the host go in, and what a step sampled.

The host sends all that changed since the last step as one list of (offset, value), whatever it means: one copy and one
launch per step. A captured decode step needs nothing else: it gathers its tokens and positions from the rows and
advances them when it has sampled.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton import row_layout
from app.kernels.triton.dependent import launch_options, wait_for_previous

TOKEN = tl.constexpr(row_layout.TOKEN)
POSITION = tl.constexpr(row_layout.POSITION)
FLAGS = tl.constexpr(row_layout.FLAGS)
PENALIZES = tl.constexpr(row_layout.PENALIZES)
SEEN_ONCE = tl.constexpr(row_layout.SEEN_ONCE)
# The largest count with a clear lowest bit, which says whether the token is in the prompt.
MOST_SEEN = tl.constexpr(2**15 - 2)
# The step counter begins again at a multiple of the ring's size below this: an int32 is full in 25 days of 1 ms.
COUNTER_END = tl.constexpr(2**31 - 1)
BLOCK = 256
# Samples that each sample is compared with at a time.
OTHERS = tl.constexpr(16)
# Programs that fill a GPU. Where most rows ask for nothing, more of them only begin and end.
FILLING = 512


def programs_per_row(num_rows: int, num_blocks: int) -> int:
    """Return among how many programs to share out each row's blocks, in kernels that few rows ask for."""
    return min(num_blocks, max(1, FILLING // max(1, num_rows)))


@triton.jit
def float_column(row_params, COLUMN: tl.constexpr):
    """Return a float32 column of a state row, whose bits are kept in an int32."""
    return tl.load(row_params + COLUMN).to(tl.float32, bitcast=True)


@triton.jit
def sampled_position(positions, logit_rows, sample_index):
    """Return the position of the token that is sampled from a row of logits: behind the row's own token."""
    return tl.load(positions + tl.load(logit_rows + sample_index)).to(tl.int32) + 1


@triton.jit
def this_sample(sampled_rows, state, state_stride):
    """Return the number of this program's sample, its state row (0: none), and where that row begins."""
    sample_index = tl.program_id(0).to(tl.int64)
    row = tl.load(sampled_rows + sample_index).to(tl.int64)
    return sample_index, row, state + row * state_stride


@triton.jit
def _scatter_kernel(changes, num_changes, memory, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait_for_previous(IS_DEPENDENT)
    start = tl.program_id(0) * BLOCK
    count = tl.load(num_changes)
    if start >= count:
        return
    index = start + tl.arange(0, BLOCK)
    mask = index < count
    offsets = tl.load(changes + 2 * index, mask=mask, other=0)
    tl.store(memory + offsets, tl.load(changes + 2 * index + 1, mask=mask, other=0), mask=mask)


def scatter(changes_N2: Tensor, num_changes: Tensor, *, out: Tensor) -> None:
    """Set out[offset] = value for the first `num_changes` of (offset, value) [N, 2]; no offset comes twice.

    All are int32 on the device (`num_changes` holds one number), and the list may lie in pinned host memory.
    """
    assert changes_N2.is_contiguous() and out.is_contiguous()
    grid = (triton.cdiv(len(changes_N2), BLOCK),)
    _scatter_kernel[grid](changes_N2, num_changes, out, BLOCK=BLOCK, num_warps=4, **launch_options())


@triton.jit(do_not_specialize=["num_tokens"])
def _gather_kernel(
    state, state_stride, sampled_rows, ids, positions, state_rows, num_tokens, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = tokens < num_tokens
    rows = tl.load(sampled_rows + tokens, mask=mask, other=0).to(tl.int64)
    params = state + rows * state_stride
    tl.store(ids + tokens, tl.load(params + TOKEN, mask=rows > 0, other=0), mask=mask)
    tl.store(positions + tokens, tl.load(params + POSITION, mask=rows > 0, other=-1), mask=mask)
    tl.store(state_rows + tokens, rows, mask=mask)


def gather_decodes(
    state_SW: Tensor, sampled_rows_T: Tensor, *, ids_T: Tensor, positions_T: Tensor, state_rows_T: Tensor
) -> None:
    """Write a decode step's token ids, positions and state rows: where the sequence of each row stands.

    Row 0 pads: id 0 at position -1.
    """
    assert state_SW.stride(1) == 1
    grid = (triton.cdiv(len(ids_T), BLOCK),)
    _gather_kernel[grid](
        state_SW,
        state_SW.stride(0),
        sampled_rows_T,
        ids_T,
        positions_T,
        state_rows_T,
        len(ids_T),
        BLOCK=BLOCK,
        num_warps=4,
        **launch_options(),
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _fill_kernel(state, state_stride, ids, state_rows, num_tokens, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait_for_previous(IS_DEPENDENT)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = tokens < num_tokens
    is_unknown = tl.load(ids + tokens, mask=mask, other=0) < 0
    rows = tl.load(state_rows + tokens, mask=is_unknown, other=0).to(tl.int64)
    known = tl.load(state + rows * state_stride + TOKEN, mask=rows > 0, other=0)
    tl.store(ids + tokens, known, mask=is_unknown)


def fill_unknown(state_SW: Tensor, *, ids_T: Tensor, state_rows_T: Tensor) -> None:
    """Replace each negative id: the step that samples that token was still in flight when this one was planned."""
    assert state_SW.stride(1) == 1
    grid = (triton.cdiv(len(ids_T), BLOCK),)
    _fill_kernel[grid](
        state_SW, state_SW.stride(0), ids_T, state_rows_T, len(ids_T), BLOCK=BLOCK, num_warps=4, **launch_options()
    )


@triton.jit
def _compare_samples(samples, rows, sampled, sampled_rows, tokens, num_samples):
    """Count for each sample the later ones of its row, all of its row and token, and the later ones of both."""
    later_of_row = tl.zeros_like(rows)
    alike = tl.zeros_like(rows)
    later_alike = tl.zeros_like(rows)
    for start in range(0, num_samples, OTHERS):
        others = start + tl.arange(0, OTHERS)
        mask = others < num_samples
        other_rows = tl.load(sampled_rows + others, mask=mask, other=-1)
        other_tokens = tl.load(tokens + others, mask=mask, other=0)
        is_of_row = rows[:, None] == other_rows[None, :]
        is_alike = is_of_row & (sampled[:, None] == other_tokens[None, :])
        is_later = others[None, :] > samples[:, None]
        later_of_row += tl.sum((is_of_row & is_later).to(tl.int32), axis=1)
        alike += tl.sum(is_alike.to(tl.int32), axis=1)
        later_alike += tl.sum((is_alike & is_later).to(tl.int32), axis=1)
    return later_of_row, alike, later_alike


@triton.jit(do_not_specialize=["num_samples"])
def _advance_kernel(
    state, state_stride, seen, seen_stride, tokens, sampled_rows, logit_rows, positions, ring, ring_stride, ring_size,
    counter, num_samples, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    samples = tl.arange(0, BLOCK)
    mask = samples < num_samples
    sampled = tl.load(tokens + samples, mask=mask, other=0).to(tl.int32)
    step = tl.load(counter)
    tl.store(ring + (step % ring_size).to(tl.int64) * ring_stride + samples, sampled, mask=mask)
    sampled = tl.maximum(sampled, 0)  # NO_TOKEN and NO_ALLOWED_TOKEN are for the host

    rows = tl.load(sampled_rows + samples, mask=mask, other=0).to(tl.int32)
    later_of_row, alike, later_alike = _compare_samples(samples, rows, sampled, sampled_rows, tokens, num_samples)
    params = state + rows.to(tl.int64) * state_stride
    is_last = (rows > 0) & (later_of_row == 0)
    token_rows = tl.load(logit_rows + samples, mask=is_last, other=0)
    position = tl.load(positions + token_rows, mask=is_last, other=0).to(tl.int32) + 1
    tl.store(params + TOKEN, sampled, mask=is_last)
    tl.store(params + POSITION, position, mask=is_last)

    flags = tl.load(params + FLAGS, mask=rows > 0, other=0)
    is_counted = (rows > 0) & ((flags & PENALIZES) != 0) & (later_alike == 0)
    counts = seen + rows.to(tl.int64) * seen_stride + sampled
    count = tl.load(counts, mask=is_counted, other=0).to(tl.int32)
    count = tl.minimum(count + SEEN_ONCE * alike, MOST_SEEN + (count & 1))
    tl.store(counts, count.to(tl.int16), mask=is_counted)

    tl.debug_barrier()  # no thread may find the counter advanced that still has to read it
    tl.store(counter, tl.where(step + 1 < COUNTER_END // ring_size * ring_size, step + 1, 0))


def advance(
    state_SW: Tensor,
    seen_SV: Tensor,
    tokens_R: Tensor,
    sampled_rows_R: Tensor,
    logit_rows_R: Tensor,
    positions_T: Tensor,
    *,
    ring_KR: Tensor,
    counter: Tensor,
) -> None:
    """Let the rows stand at their sampled tokens; penalized rows count them, and the ring keeps all R.

    A row that samples several times stands at the last one. The tokens' index in the ring is counter % K; the counter
    [1] goes up by one. One program: nothing that it reads is changed by another.
    """
    assert state_SW.stride(1) == seen_SV.stride(1) == ring_KR.stride(1) == 1
    block = max(32, triton.next_power_of_2(len(tokens_R)))
    _advance_kernel[(1,)](
        state_SW, state_SW.stride(0), seen_SV, seen_SV.stride(0), tokens_R, sampled_rows_R, logit_rows_R, positions_T,
        ring_KR, ring_KR.stride(0), len(ring_KR), counter, len(tokens_R), BLOCK=block, num_warps=min(16, block // 32),
        **launch_options(),
    )  # fmt: skip
