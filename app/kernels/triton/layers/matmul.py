"""x @ weight.T for `--deterministic`: the bits of a row are the same in any batch, of any size.

There is one tile for every number of rows, one order along the depth, and a number of splits of the depth that the
weight's shape alone decides. The split is arithmetic, not scheduling: a partial sum begins at zero in every split, and
the partial sums are added in the order of the splits. Where few tiles would leave the GPU idle, each split is a
program of its own, and the last to arrive adds what all of them left in the workspace; elsewhere one program goes
through the splits one after another. Both give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import EARLY_LINES, launch_options, prefetch_rows, wait_for_previous
from app.kernels.triton.interpreter import is_interpreting

# Rows and columns of a tile; half of it for float32, whose products are not the tensor cores' and take registers.
TILE = 128
# Steps along the depth: 128 bytes of every row.
STEP_BYTES = 128
# Row tiles whose programs are neighbours, so that they find the weight in the L2 cache.
GROUP = tl.constexpr(8)
# The depth is split while that gives no more programs than an H200 has processors, and every split these steps. Both
# are arithmetic: on another GPU they stay as they are.
PROGRAMS = 132
MIN_STEPS = 8
# Two programs per processor: beyond that, to leave partial sums in memory costs more than it fills.
MAX_PARTIALS = 2 * PROGRAMS


class Workspace(NamedTuple):
    """Where programs leave their partial sums, and how many have: the counters are zero between launches."""

    partials: Tensor
    counters: Tensor


def make_workspace(device: torch.device) -> Workspace:
    """Allocate what products of any size need: 17 MB, for one stream."""
    partials = torch.empty(MAX_PARTIALS * TILE * TILE, dtype=torch.float32, device=device)
    return Workspace(partials, torch.zeros(MAX_PARTIALS, dtype=torch.int32, device=device))


@triton.jit
def _tile_of(number, num_row_tiles, num_column_tiles):
    """Return the row and the column of a tile: GROUP row tiles share each column before the next one comes."""
    in_group = GROUP * num_column_tiles
    first = number // in_group * GROUP
    height = tl.minimum(num_row_tiles - first, GROUP)
    return first + number % in_group % height, number % in_group // height


@triton.jit
def _partial_product(
    x, weight, row_mask, column_mask, start, end, depth,
    WHOLE_COLUMNS: tl.constexpr, WHOLE_STEPS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Return the product of a tile's rows of x and of the weight over start .. end of the depth, begun at zero."""
    sums = tl.zeros([TILE, TILE], dtype=tl.float32)
    for at in range(start, end, STEP):
        along = at + tl.arange(0, STEP)[None, :]
        x_mask, weight_mask = row_mask, column_mask
        if not WHOLE_STEPS:
            x_mask = row_mask & (along < depth)
            weight_mask = column_mask & (along < depth)
        x_tile = tl.load(x + along, mask=x_mask, other=0.0)
        if WHOLE_COLUMNS and WHOLE_STEPS:
            weight_tile = tl.load(weight + along)
        else:
            weight_tile = tl.load(weight + along, mask=weight_mask, other=0.0)
        if UPCAST:
            x_tile, weight_tile = x_tile.to(tl.float32), weight_tile.to(tl.float32)
        sums = tl.dot(x_tile, tl.trans(weight_tile), sums, input_precision="ieee")
    return sums


@triton.jit
def _store_product(sums, bias, outputs, columns, mask, column_mask):
    """Add the bias in float32, round, store."""
    if bias is not None:
        sums += tl.load(bias + columns, mask=column_mask, other=0.0).to(tl.float32)
    tl.store(outputs, sums.to(outputs.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _matmul_kernel(
    x, weight, bias, out, partials, counters, num_rows, width, depth, x_stride, weight_stride, out_stride,
    split_depth, SPLITS: tl.constexpr, APART: tl.constexpr, WHOLE_COLUMNS: tl.constexpr, WHOLE_STEPS: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    num_row_tiles, num_column_tiles = tl.cdiv(num_rows, TILE), tl.cdiv(width, TILE)
    num_tiles = num_row_tiles * num_column_tiles
    tile, split = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    row_tile, column_tile = _tile_of(tile, num_row_tiles, num_column_tiles)
    first = split * split_depth if APART else 0
    prefetch_rows(
        weight + first, column_tile * TILE, width, depth - first, weight_stride, TILE, EARLY_LINES, IS_DEPENDENT
    )
    wait_for_previous(IS_DEPENDENT)
    rows = row_tile * TILE + tl.arange(0, TILE)[:, None]
    weight_rows = column_tile * TILE + tl.arange(0, TILE)[:, None]
    columns = column_tile * TILE + tl.arange(0, TILE)[None, :]
    row_mask, weight_mask, column_mask = rows < num_rows, weight_rows < width, columns < width
    x += rows.to(tl.int64) * x_stride
    weight += weight_rows.to(tl.int64) * weight_stride
    outputs = out + rows.to(tl.int64) * out_stride + columns
    if APART:
        start = split * split_depth
        sums = _partial_product(
            x, weight, row_mask, weight_mask, start, tl.minimum(start + split_depth, depth), depth,
            WHOLE_COLUMNS, WHOLE_STEPS, TILE, STEP, UPCAST,
        )  # fmt: skip
        place = tl.arange(0, TILE)[:, None] * TILE + tl.arange(0, TILE)[None, :]
        mine = partials + tile * SPLITS * TILE * TILE + place
        tl.store(mine + split * TILE * TILE, sums, mask=row_mask)
        tl.debug_barrier()  # every thread has stored before one of them says so
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1:
            total = tl.zeros([TILE, TILE], dtype=tl.float32)
            for number in tl.range(SPLITS, loop_unroll_factor=2):
                total += tl.load(mine + number * TILE * TILE, mask=row_mask, other=0.0, cache_modifier=".cg")
            tl.store(counters + tile, 0)
            _store_product(total, bias, outputs, columns, row_mask & column_mask, column_mask)
    else:
        total = tl.zeros([TILE, TILE], dtype=tl.float32)
        for number in range(SPLITS):
            start = number * split_depth
            total += _partial_product(
                x, weight, row_mask, weight_mask, start, tl.minimum(start + split_depth, depth), depth,
                WHOLE_COLUMNS, WHOLE_STEPS, TILE, STEP, UPCAST,
            )  # fmt: skip
        _store_product(total, bias, outputs, columns, row_mask & column_mask, column_mask)


def splits_of(width: int, depth: int, tile: int, step: int) -> tuple[int, int]:
    """Return into how many splits the depth of a weight [width, depth] is cut, and how deep each is."""
    steps = triton.cdiv(depth, step)
    wanted = min(PROGRAMS // triton.cdiv(width, tile), steps // MIN_STEPS)
    per_split = triton.cdiv(steps, max(1, wanted))
    return max(1, triton.cdiv(steps, per_split)), per_split * step


def matmul(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *, out: Tensor, workspace: Workspace) -> None:
    """Compute out[T, N] = x · weightᵀ + bias, in float32 or x's type; a row's bits depend on it and the weight alone.

    The sums are float32, the bias is added last. `workspace` serves one launch at a time.
    """
    (rows, depth), width = x_TK.shape, len(weight_NK)
    assert x_TK.stride(1) == weight_NK.stride(1) == out.stride(1) == 1 and x_TK.dtype == weight_NK.dtype
    tile, step = (TILE if x_TK.element_size() == 2 else TILE // 2), STEP_BYTES // x_TK.element_size()
    splits, split_depth = splits_of(width, depth, tile, step)
    tiles = triton.cdiv(rows, tile) * triton.cdiv(width, tile)
    apart = splits > 1 and tiles * splits <= MAX_PARTIALS
    if rows:
        _matmul_kernel[(tiles * splits if apart else tiles,)](
            x_TK, weight_NK, bias_N, out, *workspace, rows, width, depth,
            x_TK.stride(0), weight_NK.stride(0), out.stride(0), split_depth,
            SPLITS=splits, APART=apart, WHOLE_COLUMNS=width % tile == 0, WHOLE_STEPS=depth % step == 0,
            TILE=tile, STEP=step, UPCAST=is_interpreting(), num_warps=8, num_stages=4 if splits > 1 else 3,
            **launch_options(),
        )  # fmt: skip
