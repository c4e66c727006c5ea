"""RMSNorm, alone or behind the residual sum: one row per program; and the residual sum alone.

The mean square is taken in float32. As in transformers' Llama, the residual is rounded to its type before it is
normalized, and the normalized value to the output's type before it is multiplied with the weight. A row's bits depend
on the row alone. Rows wider than MAX_BLOCK are walked in pieces, twice.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import EARLY_LINES, launch_options, prefetch_rows, wait_for_previous

MAX_BLOCK = 8192
SUM_BLOCK = 1024


@triton.jit
def _sum_with_residual(x, residual, columns, mask):
    """Return x, or x + residual rounded to the residual's type, in float32."""
    values = tl.load(x + columns, mask=mask, other=0.0).to(tl.float32)
    if residual is not None:
        values += tl.load(residual + columns, mask=mask, other=0.0).to(tl.float32)
        values = values.to(residual.dtype.element_ty).to(tl.float32)
    return values


@triton.jit
def _scaled(values, scale, weight, dtype):
    """Return values * scale, rounded, times the weight."""
    normed = (values * scale).to(dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(dtype)


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, x_stride, residual_stride, out_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    prefetch_rows(weight, 0, 1, WIDTH, WIDTH, 1, EARLY_LINES, IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    out += row * out_stride
    if residual is not None:
        residual += row * residual_stride
    columns = tl.arange(0, BLOCK)
    mask = columns < WIDTH
    values = _sum_with_residual(x, residual, columns, mask)
    factors = tl.load(weight + columns, mask=mask, other=0.0)  # not behind the barriers of the reduction
    scale = tl.rsqrt(tl.sum(values * values, 0) / WIDTH + eps)
    if residual is not None:
        # After the reduction: where several threads hold one element, all have read it by now.
        tl.store(residual + columns, values.to(residual.dtype.element_ty), mask=mask)
    tl.store(out + columns, _scaled(values, scale, factors, out.dtype.element_ty), mask=mask)


@triton.jit
def _wide_rms_norm_kernel(
    x, residual, weight, out, x_stride, residual_stride, out_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    prefetch_rows(weight, 0, 1, WIDTH, WIDTH, 1, EARLY_LINES, IS_DEPENDENT)
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    out += row * out_stride
    if residual is not None:
        residual += row * residual_stride
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = _sum_with_residual(x, residual, columns, columns < WIDTH)
        squares += values * values
    scale = tl.rsqrt(tl.sum(squares, 0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < WIDTH
        # The sum is taken again: the residual is still the old one.
        values = _sum_with_residual(x, residual, columns, mask)
        factors = tl.load(weight + columns, mask=mask, other=0.0)
        if residual is not None:
            tl.store(residual + columns, values.to(residual.dtype.element_ty), mask=mask)
        tl.store(out + columns, _scaled(values, scale, factors, out.dtype.element_ty), mask=mask)


@triton.jit
def _add_kernel(
    x, residual, out, x_stride, residual_stride, out_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    values = _sum_with_residual(x + row * x_stride, residual + row * residual_stride, columns, mask)
    tl.store(residual + row * residual_stride + columns, values.to(residual.dtype.element_ty), mask=mask)
    tl.store(out + row * out_stride + columns, values.to(out.dtype.element_ty), mask=mask)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
    """Compute out[T, D] = weight · x / rms(x); `out` may be `x`."""
    _launch(x_TD, None, weight_D, eps, out)


def add_rms_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, *, out: Tensor) -> None:
    """Compute residual += x, in place; out[T, D] = rms_norm(residual)."""
    _launch(x_TD, residual_TD, weight_D, eps, out)


def add(x_TD: Tensor, residual_TD: Tensor, *, out: Tensor) -> None:
    """Compute residual += x, in place; out[T, D] = residual."""
    rows, width = x_TD.shape
    assert x_TD.stride(1) == residual_TD.stride(1) == out.stride(1) == 1
    if rows:
        _add_kernel[(rows, triton.cdiv(width, SUM_BLOCK))](
            x_TD, residual_TD, out, x_TD.stride(0), residual_TD.stride(0), out.stride(0), WIDTH=width, BLOCK=SUM_BLOCK,
            num_warps=4, **launch_options(),
        )  # fmt: skip


def _launch(x_TD: Tensor, residual_TD: Tensor | None, weight_D: Tensor, eps: float, out_TD: Tensor) -> None:
    rows, width = x_TD.shape
    assert x_TD.stride(1) == out_TD.stride(1) == weight_D.stride(0) == 1
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    kernel = _rms_norm_kernel if width <= block else _wide_rms_norm_kernel
    if rows:
        kernel[(rows,)](
            x_TD, residual_TD, weight_D, out_TD, x_TD.stride(0),
            0 if residual_TD is None else residual_TD.stride(0), out_TD.stride(0), eps,
            WIDTH=width, BLOCK=block, num_warps=_num_warps(block), **launch_options(),
        )  # fmt: skip


def _num_warps(block: int) -> int:
    """Return the warps for a block of columns: at least 8 elements per thread, so that no element is held twice."""
    return max(1, min(8, block // 256))
