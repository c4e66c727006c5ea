"""Products of few rows with the norm before them and the activation behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.layers import matvec
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.kernel_cases.matmul import MODELS, layer_shapes, product_work
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.timing import Call, num_copies

EPS = 1e-6


def cases() -> Iterator[Case]:
    """Yield the matrices of a layer for one row, for eight and for sixteen."""
    for model in MODELS:
        for part, (width, depth) in layer_shapes(SHAPES[model]).items():
            for num_rows in matvec.ROW_TILES:
                yield case(f"{model} {part}", num_rows, width, depth, is_gated=part == "gate_up")


def case(
    name: str, num_rows: int, width: int, depth: int, *, is_gated: bool, dtype: torch.dtype = torch.bfloat16
) -> Case:
    """Return the case of a weight [width, depth]; gated: norm before it, silu(gate) · up behind it."""
    work = product_work(num_rows, width, depth)
    setup = partial(_setup, num_rows, width, depth, is_gated, dtype, num_copies(work.num_bytes))
    return Case(f"{name} M={num_rows}", work, setup, {"rows": num_rows, "rate": True})


def _setup(
    num_rows: int, width: int, depth: int, is_gated: bool, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    calls: list[Call] = []
    norm_weight = randn(depth, place=place, dtype=dtype)
    for _ in range(copies):
        x_TX, weight_NX = (
            randn(num_rows, depth, place=place, dtype=dtype),
            randn(width, depth, place=place, dtype=dtype),
        )
        out = torch.empty(num_rows, width // 2 if is_gated else width, dtype=dtype, device=place)
        if is_gated:
            calls.append(partial(matvec.norm_gate_up, x_TX, norm_weight, EPS, weight_NX, "silu", out=out))
        else:
            calls.append(partial(matvec.linear, x_TX, weight_NX, None, out=out))
    return calls
