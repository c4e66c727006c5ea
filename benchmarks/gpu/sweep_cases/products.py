"""Products of few rows: the LM head by cuBLAS or by our kernel, and those of a layer with dependent launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from app.kernels.ops import LinearWeight
from app.kernels.triton import dependent
from app.kernels.triton.layers import matvec
from app.kernels.triton.triton_ops import CublasProducts
from benchmarks.gpu.bounds import Shape, Work
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.kernel_cases.matmul import CUBLAS, OURS, layer_shapes, product_work
from benchmarks.gpu.kernel_cases.matvec import EPS
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.sections import FLAGSHIP, SMALL
from benchmarks.gpu.timing import Call, num_copies


def heads() -> Iterator[Case]:
    """Yield the heads of a 0.6B and an 8B model for one row and for eight, both ways."""
    for model in (SMALL, FLAGSHIP):
        shape = SHAPES[model]
        for num_rows in (1, matvec.MAX_ROWS):
            for by in (OURS, CUBLAS):
                yield head(model, num_rows, shape.vocab, shape.hidden, by)


def layers() -> Iterator[Case]:
    """Yield the four products of a layer for one row, each behind the one before, launched in both ways."""
    for model in (SMALL, FLAGSHIP):
        for is_dependent in (False, True):
            yield layer(model, SHAPES[model], is_dependent)


def layer(name: str, shape: Shape, is_dependent: bool, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of the products of a layer, without attention between them."""
    sizes = [size for part, size in layer_shapes(shape).items() if part != "head"]
    num_bytes = sum(product_work(1, *size).num_bytes for size in sizes)
    setup = partial(_setup_layer, shape, is_dependent, dtype, num_copies(num_bytes))
    about = {"by": "dependent launches" if is_dependent else "plain launches"}
    return Case(f"{name} M=1 {about['by']}", Work(num_bytes), setup, about)


def _setup_layer(
    shape: Shape, is_dependent: bool, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    sizes = layer_shapes(shape)
    widths = (shape.hidden, sizes["qkv"][0], shape.hidden, shape.ffn)
    norm_D = randn(shape.hidden, place=place, dtype=dtype)

    def call(weights: Mapping[str, Tensor], x_TD: Tensor, qkv_TX: Tensor, y_TD: Tensor, mlp_TF: Tensor) -> None:
        with dependent.launches(is_dependent=is_dependent):
            matvec.norm_linear(x_TD, norm_D, EPS, weights["qkv"], None, out=qkv_TX)
            matvec.linear(qkv_TX[:, : sizes["o"][1]], weights["o"], None, out=y_TD)
            matvec.norm_gate_up(y_TD, norm_D, EPS, weights["gate_up"], "silu", out=mlp_TF)
            matvec.linear(mlp_TF, weights["down"], None, out=y_TD)

    return [
        partial(
            call,
            {part: randn(*sizes[part], place=place, dtype=dtype) for part in ("qkv", "o", "gate_up", "down")},
            *(randn(1, width, place=place, dtype=dtype) for width in widths),
        )
        for _ in range(copies)
    ]


def head(name: str, num_rows: int, vocab: int, depth: int, by: str, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of logits in float32."""
    work = product_work(num_rows, vocab, depth)
    setup = partial(_setup, num_rows, vocab, depth, by, dtype, num_copies(work.num_bytes))
    return Case(f"{name} M={num_rows} {by}", work, setup, {"by": by, "rows": num_rows, "rate": True})


def _setup(
    num_rows: int, vocab: int, depth: int, by: str, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    calls: list[Call] = []
    for _ in range(copies):
        x_RD = randn(num_rows, depth, place=place, dtype=dtype)
        weight_VD = randn(vocab, depth, place=place, dtype=dtype)
        out = torch.empty(num_rows, vocab, dtype=torch.float32, device=place)
        if by == OURS:
            calls.append(partial(matvec.linear, x_RD, weight_VD, None, out=out))
        else:
            calls.append(partial(CublasProducts().logits, x_RD, LinearWeight(weight_VD), out))
    return calls
