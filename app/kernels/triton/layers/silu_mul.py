"""SiLU of the gate times up, over the merged output of the gate and up projections.

silu(gate) is rounded to the storage type before the product, as in transformers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import launch_options, wait_for_previous

BLOCK = 1024


@triton.jit
def silu(gate):
    """Return gate · sigmoid(gate) in float32; no exponential of a positive number, so nothing overflows."""
    small = tl.exp(-tl.abs(gate))
    return gate * tl.where(gate >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _silu_mul_kernel(
    gate_up, out, gate_up_stride, out_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr
):
    wait_for_previous(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gate_up += row * gate_up_stride
    gate = tl.load(gate_up + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    activated = silu(gate).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * out_stride + columns, (activated * up).to(out.dtype.element_ty), mask=mask)


def silu_mul(gate_up_TX: Tensor, *, out: Tensor) -> None:
    """Compute out[T, F] = silu(gate) · up, where gate and up are the halves of the input [T, 2F]."""
    rows, width = out.shape
    assert gate_up_TX.shape == (rows, 2 * width) and gate_up_TX.stride(1) == out.stride(1) == 1
    if rows:
        _silu_mul_kernel[(rows, triton.cdiv(width, BLOCK))](
            gate_up_TX, out, gate_up_TX.stride(0), out.stride(0), WIDTH=width, BLOCK=BLOCK, num_warps=4,
            **launch_options(),
        )  # fmt: skip
