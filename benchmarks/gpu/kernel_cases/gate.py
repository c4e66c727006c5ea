"""silu(gate) · up, and the same with GELU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.layers.gate import Activation, gate_mul
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.timing import Call, num_copies


def cases() -> Iterator[Case]:
    """Yield the widths of an 8B and a 0.6B model."""
    for width in (14336, 3072):
        for num_rows in (256, 1, 2048):
            yield case(num_rows, width)
    yield case(256, 14336, "gelu")


def case(num_rows: int, width: int, activation: Activation = "silu", dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of so many rows."""
    num_bytes = 3 * num_rows * width * BF16
    name = f"{num_rows} x {width}" if activation == "silu" else f"{num_rows} x {width} {activation}"
    return Case(name, Work(num_bytes), partial(_setup, num_rows, width, activation, dtype, num_copies(num_bytes)))


def _setup(
    num_rows: int, width: int, activation: Activation, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    calls: list[Call] = []
    for _ in range(copies):
        out = torch.empty(num_rows, width, dtype=dtype, device=place)
        calls.append(partial(gate_mul, randn(num_rows, 2 * width, place=place, dtype=dtype), activation, out=out))
    return calls
