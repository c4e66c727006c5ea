"""The LM head of few rows: cuBLAS, or the kernel for products of few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.ops import LinearWeight
from app.kernels.triton import matvec
from app.kernels.triton.triton_ops import CublasProducts
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.kernel_cases.matmul import CUBLAS, OURS, product_work
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
