"""Products of at most MAX_ROWS rows with what stands before and behind them, for small batches of decode.

A weight is streamed once; everything else must hide behind that. So a norm before the product takes no pass of its own:
the rows are multiplied with the norm's weight as they are loaded, their squares are summed on the way, and the scale
1 / rms comes after the product. (The normalized value is not rounded to the storage type, as `norm` does: the result is
nearer to the exact one.) Behind the product, a residual is added or activation(gate) · up taken, with the roundings of
the separate kernels. The order of summation is not that of `matmul`.

One row: the weight's tile times the row, summed at the end. More rows: the weight is the left operand of the tensor
cores, whose right one is 8 or 16 wide. A narrow weight gives few programs; these take two steps at once, as the
diagonal blocks of a larger product, so that its other warps keep them from waiting for one long chain of sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import EARLY_LINES, launch_options, prefetch_rows, wait_for_previous
from app.kernels.triton.interpreter import is_interpreting
from app.kernels.triton.layers.gate import Activation, activated

MAX_ROWS = 16
# What rows are padded to.
ROW_TILES = (1, 8, 16)
# Steps under way, the one that is computed with among them.
STAGES = 4


class _Tiling(NamedTuple):
    """Weight rows of a program, elements of each per step, steps at once, warps."""

    tile: int
    step: int
    slices: int
    warps: int


def serves(num_rows: int, dtype: torch.dtype) -> bool:
    """Return whether the products below take so many rows of a type: before the scale, float16 might overflow."""
    return num_rows == 1 or (num_rows <= MAX_ROWS and dtype != torch.float16)


@triton.jit
def _accumulate(sums, weight, rows, mask, WHOLE: tl.constexpr, UPCAST: tl.constexpr):
    """Add the products of a tile of the weight [TILE, STEP] with rows [ROWS, STEP] to their sums."""
    tile = tl.load(weight) if WHOLE else tl.load(weight, mask=mask, other=0.0)
    if rows.shape[0] == 1:
        sums += tile.to(tl.float32) * rows
    elif UPCAST:
        sums = tl.dot(tile.to(tl.float32), tl.trans(rows), sums, input_precision="ieee")
    else:
        sums = tl.dot(tile, tl.trans(rows.to(tile.dtype)), sums, input_precision="ieee")
    return sums


@triton.jit
def _finished(
    sums, scale, bias, numbers, mask, dtype, ROWS: tl.constexpr, SLICES: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Return the products [TILE, ROWS]: summed, scaled, with the bias, rounded to `dtype` and back."""
    if ROWS == 1:
        sums = tl.sum(sums, 1)[:, None]
    elif SLICES > 1:
        left = tl.arange(0, SLICES * TILE)[:, None] // TILE
        right = tl.arange(0, SLICES * ROWS)[None, :] // ROWS
        blocks = tl.reshape(tl.where(left == right, sums, 0.0), [SLICES, TILE, SLICES, ROWS])
        sums = tl.sum(tl.sum(blocks, 2), 0)
    sums = sums * scale[None, :]
    if bias is not None:
        sums += tl.load(bias + numbers, mask=mask, other=0.0).to(tl.float32)
    return sums.to(dtype).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _matvec_kernel(
    x, norm_weight, eps, weight, bias, residual, out, num_rows, width, depth, x_stride, weight_stride, out_stride,
    ACTIVATION: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    SLICES: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    GATED: tl.constexpr = ACTIVATION is not None
    LINES: tl.constexpr = EARLY_LINES // 2 if GATED else EARLY_LINES
    prefetch_rows(weight, tl.program_id(0) * TILE, width, depth, weight_stride, TILE, LINES, IS_DEPENDENT)
    if GATED:
        first_up = width + tl.program_id(0) * TILE
        prefetch_rows(weight, first_up, 2 * width, depth, weight_stride, TILE, LINES, IS_DEPENDENT)
    if norm_weight is not None:
        prefetch_rows(norm_weight, 0, 1, depth, depth, 1, LINES, IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    numbers, across = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None], tl.arange(0, ROWS)[None, :]
    place, out_mask = across * out_stride + numbers, (across < num_rows) & (numbers < width)
    if residual is not None:  # loaded beside the first steps, not behind the last
        before = tl.load(residual + place, mask=out_mask, other=0.0)
    # Slice s of the rows of either operand takes step s of those that are taken at once.
    line, weight_line = tl.arange(0, SLICES * ROWS)[:, None], tl.arange(0, SLICES * TILE)[:, None]
    row, ahead = line % ROWS, line // ROWS * STEP
    weight_row, weight_ahead = tl.program_id(0) * TILE + weight_line % TILE, weight_line // TILE * STEP
    x += row * x_stride + ahead
    weights = weight + weight_row.to(tl.int64) * weight_stride + weight_ahead
    up_weights = weight + (weight_row.to(tl.int64) + width) * weight_stride + weight_ahead
    # One row: sums of every column of the tile, until the end. More: the tensor cores sum over the columns.
    sums = tl.zeros([SLICES * TILE, STEP if ROWS == 1 else SLICES * ROWS], dtype=tl.float32)
    ups = tl.zeros([SLICES * TILE, STEP if ROWS == 1 else SLICES * ROWS], dtype=tl.float32)
    squares = tl.zeros([SLICES * ROWS, STEP], dtype=tl.float32)
    for at in tl.range(0, depth, SLICES * STEP, num_stages=STAGES):
        columns = at + tl.arange(0, STEP)[None, :]
        rows = tl.load(x + columns, mask=(row < num_rows) & (columns + ahead < depth), other=0.0).to(tl.float32)
        if norm_weight is not None:
            squares += rows * rows
            rows *= tl.load(norm_weight + columns, mask=columns < depth, other=0.0).to(tl.float32)
        mask = (weight_row < width) & (columns + weight_ahead < depth)
        sums = _accumulate(sums, weights + columns, rows, mask, WHOLE, UPCAST)
        if GATED:
            ups = _accumulate(ups, up_weights + columns, rows, mask, WHOLE, UPCAST)
    scale = tl.full([ROWS], 1.0, dtype=tl.float32)
    if norm_weight is not None:
        scale = tl.rsqrt(tl.sum(squares, 1) / depth + eps)
    dtype = out.dtype.element_ty
    results = _finished(sums, scale, bias, numbers, numbers < width, dtype, ROWS, SLICES, TILE)
    if GATED:
        up = _finished(ups, scale, None, numbers, numbers < width, dtype, ROWS, SLICES, TILE)
        results = activated(results, ACTIVATION).to(dtype).to(tl.float32) * up
    if residual is not None:
        results += before.to(tl.float32)
    tl.store(out + place, results.to(dtype), mask=out_mask)


def linear(x_TX: Tensor, weight_NX: Tensor, bias_N: Tensor | None, *, out: Tensor) -> None:
    """Compute out[T, N] = x · weightᵀ + bias, in x's type or float32."""
    _launch(x_TX, weight_NX, bias_N, out)


def linear_add(x_TX: Tensor, weight_DX: Tensor, bias_D: Tensor | None, *, residual_TD: Tensor) -> None:
    """Compute residual[T, D] += x · weightᵀ + bias, in place; the sum's second term is rounded before it is added."""
    _launch(x_TX, weight_DX, bias_D, residual_TD, residual_TD=residual_TD)


def norm_linear(
    x_TD: Tensor, norm_weight_D: Tensor, eps: float, weight_ND: Tensor, bias_N: Tensor | None, *, out: Tensor
) -> None:
    """Compute out[T, N] = rms_norm(x) · weightᵀ + bias."""
    _launch(x_TD, weight_ND, bias_N, out, norm=(norm_weight_D, eps))


def norm_gate_up(
    x_TD: Tensor, norm_weight_D: Tensor, eps: float, weight_XD: Tensor, activation: Activation, *, out: Tensor
) -> None:
    """Compute out[T, F] = activation(gate) · up, gate and up the halves of rms_norm(x) · weightᵀ [T, 2F]."""
    _launch(x_TD, weight_XD, None, out, norm=(norm_weight_D, eps), activation=activation)


def _launch(
    x_TX: Tensor,
    weight_NX: Tensor,
    bias_N: Tensor | None,
    out: Tensor,
    *,
    norm: tuple[Tensor | None, float] = (None, 0.0),
    residual_TD: Tensor | None = None,
    activation: Activation | None = None,
) -> None:
    rows, depth = x_TX.shape
    gated = activation is not None
    width = len(weight_NX) // (2 if gated else 1)
    tiling = _tiling(rows, width, x_TX.dtype, normed=norm[0] is not None, gated=gated)
    assert serves(rows, x_TX.dtype) and out.shape == (rows, width) and weight_NX.shape[1] == depth
    assert x_TX.stride(1) == weight_NX.stride(1) == out.stride(1) == 1
    whole = width % tiling.tile == 0 and depth % (tiling.slices * tiling.step) == 0
    _matvec_kernel[(triton.cdiv(width, tiling.tile),)](
        x_TX, *norm, weight_NX, bias_N, residual_TD, out, rows, width, depth,
        x_TX.stride(0), weight_NX.stride(0), out.stride(0),
        ACTIVATION=activation, WHOLE=whole, ROWS=next(size for size in ROW_TILES if rows <= size), TILE=tiling.tile,
        STEP=tiling.step, SLICES=tiling.slices, STAGES=STAGES, UPCAST=is_interpreting(), num_warps=tiling.warps,
        **launch_options(),
    )  # fmt: skip


def _tiling(num_rows: int, width: int, dtype: torch.dtype, *, normed: bool, gated: bool) -> _Tiling:
    """Return the largest tile that still gives every processor of an H200 two programs (more rows: one)."""
    if num_rows == 1:
        tiles = (8, 4) if gated else (16, 8, 4)
        tile = next((tile for tile in tiles if width >= 264 * tile), 4)
        return _Tiling(tile, 512, 1, 4)
    if dtype == torch.float32:  # no tensor cores: what they would find in shared memory is in registers
        return _Tiling(16, 64, 1, 4)
    tile = next((tile for tile in (32, 16) if width >= 132 * tile), 16)
    if tile == 16 and not normed:
        return _Tiling(tile, 128, 2, 4)
    return _Tiling(tile, 128 if gated else 256, 1, tile // 16)
