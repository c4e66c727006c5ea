"""The activation of the gate times up, over the merged output of the gate and up projections.

The activated gate is rounded to the storage type before the product, as in transformers.
"""

from __future__ import annotations

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import launch_options, wait_for_previous

Activation = Literal["silu", "gelu"]
BLOCK = 1024
# gelu(x) = x · sigmoid(2 · √(2/π) · (x + 0.044715 x³)): the form with tanh, which loses small numbers, is the same.
GELU_SLOPE = tl.constexpr(1.5957691216057308)
GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _times_sigmoid(x, y):
    """Return x · sigmoid(y) in float32; no exponential of a positive number, so nothing overflows."""
    small = tl.exp(-tl.abs(y))
    return x * tl.where(y >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def activated(gate, ACTIVATION: tl.constexpr):
    """Return silu(gate), or gelu(gate) as approximated with tanh, in float32."""
    if ACTIVATION == "gelu":
        return _times_sigmoid(gate, GELU_SLOPE * (gate + GELU_CUBE * gate * gate * gate))
    else:
        return _times_sigmoid(gate, gate)


@triton.jit
def _gate_mul_kernel(
    gate_up, out, gate_up_stride, out_stride, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gate_up += row * gate_up_stride
    gate = tl.load(gate_up + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    rounded = activated(gate, ACTIVATION).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * out_stride + columns, (rounded * up).to(out.dtype.element_ty), mask=mask)


def gate_mul(gate_up_TX: Tensor, activation: Activation, *, out: Tensor) -> None:
    """Compute out[T, F] = activation(gate) · up, where gate and up are the halves of the input [T, 2F]."""
    rows, width = out.shape
    assert gate_up_TX.shape == (rows, 2 * width) and gate_up_TX.stride(1) == out.stride(1) == 1
    if rows:
        _gate_mul_kernel[(rows, triton.cdiv(width, BLOCK))](
            gate_up_TX, out, gate_up_TX.stride(0), out.stride(0), WIDTH=width, ACTIVATION=activation, BLOCK=BLOCK,
            num_warps=4, **launch_options(),
        )  # fmt: skip
