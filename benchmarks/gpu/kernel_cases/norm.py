"""RMSNorm behind the residual sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.layers.norm import add_rms_norm
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.timing import Call, num_copies

EPS = 1e-6


def cases() -> Iterator[Case]:
    """Yield the widths of an 8B and a 0.6B model."""
    for width in (4096, 1024):
        for num_rows in (256, 1, 2048):
            yield case(num_rows, width)


def case(num_rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of so many rows."""
    num_bytes = 4 * num_rows * width * BF16  # the input and the residual in, the residual and the output out
    return Case(
        f"{num_rows} x {width}", Work(num_bytes), partial(_setup, num_rows, width, dtype, num_copies(num_bytes))
    )


def _setup(num_rows: int, width: int, dtype: torch.dtype, copies: int, place: torch.device) -> Sequence[Call]:
    weight = randn(width, place=place, dtype=dtype)
    calls: list[Call] = []
    for _ in range(copies):
        x_TD, residual_TD = (randn(num_rows, width, place=place, dtype=dtype) for _ in range(2))
        calls.append(partial(add_rms_norm, x_TD, residual_TD, weight, EPS, out=torch.empty_like(x_TD)))
    return calls
