"""cap · tanh(x / cap): keeps numbers between -cap and cap, and hardly changes small ones."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import launch_options, wait_for_previous

BLOCK = 2048


@triton.jit
def tanh(x):
    """Return tanh(x) of float32 numbers, where an infinite exponential gives 1 as it should; NaN stays."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def _softcap_kernel(
    x, out, x_stride, out_stride, cap, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, cap * tanh(values / cap), mask=mask)


def softcap(x_RV: Tensor, cap: float, *, out: Tensor) -> None:
    """Compute out[R, V] = cap · tanh(x / cap) in float32; `out` may be `x`."""
    rows, width = out.shape
    assert x_RV.shape == out.shape and x_RV.stride(1) == out.stride(1) == 1 and cap > 0
    if rows:
        _softcap_kernel[(rows, triton.cdiv(width, BLOCK))](
            x_RV, out, x_RV.stride(0), out.stride(0), cap, WIDTH=width, BLOCK=BLOCK, num_warps=4, **launch_options()
        )
