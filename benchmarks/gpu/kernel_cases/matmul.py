"""Products with the weights of a layer: cuBLAS, and those of deterministic mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.layers.matmul import make_workspace, matmul
from benchmarks.gpu.bounds import BF16, Shape, Work
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.timing import Call, num_copies

MODELS, ROWS = ("Llama-3.1-8B", "Qwen3-0.6B"), (1, 8, 32, 128, 256)
CUBLAS, OURS = "cuBLAS", "quire"


def cases() -> Iterator[Case]:
    """Yield each matrix of a layer, and the head, with all numbers of rows."""
    for model in MODELS:
        for part, (width, depth) in layer_shapes(SHAPES[model]).items():
            for num_rows in ROWS:
                yield case(f"{model} {part}", num_rows, width, depth, CUBLAS)
    for part, (width, depth) in layer_shapes(SHAPES[MODELS[0]]).items():
        for num_rows in (1, 256):
            yield case(f"{MODELS[0]} {part}", num_rows, width, depth, OURS)


def layer_shapes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Return rows and columns of a model's matrices."""
    queries, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        "gate_up": (2 * shape.ffn, shape.hidden),
        "down": (shape.hidden, shape.ffn),
        "qkv": (queries + 2 * kv, shape.hidden),
        "o": (shape.hidden, queries),
        "head": (shape.vocab, shape.hidden),
    }


def product_work(num_rows: int, width: int, depth: int) -> Work:
    """The work of x · weightᵀ."""
    return Work(BF16 * (width * depth + num_rows * (width + depth)), 2.0 * num_rows * width * depth)


def case(name: str, num_rows: int, width: int, depth: int, by: str, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of a weight [width, depth]."""
    work = product_work(num_rows, width, depth)
    setup = partial(_setup, num_rows, width, depth, by, dtype, num_copies(work.num_bytes))
    return Case(f"{name} M={num_rows} {by}", work, setup, {"by": by, "rows": num_rows, "rate": True})


def _setup(
    num_rows: int, width: int, depth: int, by: str, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    calls: list[Call] = []
    workspace = make_workspace(place) if by == OURS else None
    for _ in range(copies):
        x_TX, weight_NX = (
            randn(num_rows, depth, place=place, dtype=dtype),
            randn(width, depth, place=place, dtype=dtype),
        )
        out = torch.empty(num_rows, width, dtype=dtype, device=place)
        if workspace is None:
            calls.append(partial(torch.mm, x_TX, weight_NX.t(), out=out))
        else:
            calls.append(partial(matmul, x_TX, weight_NX, None, out=out, workspace=workspace))
    return calls
