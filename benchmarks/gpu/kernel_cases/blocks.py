"""Copies of KV blocks in all layers, as sequences that split need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.blocks import copy_blocks
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import BLOCK_SIZE, Case, randn
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.timing import Call

MODEL = "Llama-3.1-8B"


def cases() -> Iterator[Case]:
    """Yield one block and many."""
    for count in (64, 1):
        yield case(count, SHAPES[MODEL].num_layers, SHAPES[MODEL].num_kv_heads, SHAPES[MODEL].head_dim)


def case(count: int, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of so many copies."""
    shape = (num_layers, 2, 4 * count + 1, BLOCK_SIZE, num_kv_heads, head_dim)
    num_bytes = 2 * 2 * count * num_layers * BLOCK_SIZE * num_kv_heads * head_dim * BF16
    return Case(f"{count} blocks", Work(num_bytes), partial(_setup, count, shape, dtype))


def _setup(count: int, shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> Sequence[Call]:
    cache = randn(*shape, place=place, dtype=dtype)
    order = 1 + torch.randperm(4 * count)[: 2 * count]
    return [partial(copy_blocks, order.view(count, 2).to(place), out=cache)]
