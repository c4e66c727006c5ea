"""Norm of heads, rotary embedding and the write to the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.layers.rotate import qk_norm_rope_kv_write
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import BLOCK_SIZE, Case, Heads, integers, paged, randn
from benchmarks.gpu.timing import Call, num_copies

CONTEXT = 1024


def cases() -> Iterator[Case]:
    """Yield the heads of Qwen3-8B and Qwen3-0.6B."""
    for heads in (Heads(32, 8, 128), Heads(16, 8, 128)):
        for num_rows in (256, 1):
            yield case(num_rows, heads)


def case(num_rows: int, heads: Heads, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of a decode step of so many rows."""
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    num_bytes = 2 * num_rows * width * BF16
    setup = partial(_setup, num_rows, heads, dtype, num_copies(num_bytes, at_most=32))
    return Case(f"{num_rows} rows {heads}", Work(num_bytes), setup)


def _setup(num_rows: int, heads: Heads, dtype: torch.dtype, copies: int, place: torch.device) -> Sequence[Call]:
    cache = paged(place, num_rows, CONTEXT, heads, dtype)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    norm_weight = randn(heads.num_heads + heads.num_kv_heads, heads.head_dim, place=place, dtype=dtype)
    rope_PH = randn(CONTEXT, heads.head_dim, place=place, dtype=torch.float32)
    positions, rows = integers([CONTEXT - 1] * num_rows, place), integers(range(1, num_rows + 1), place)
    calls: list[Call] = []
    for _ in range(copies):
        qkv_TX = randn(num_rows, width, place=place, dtype=dtype)
        out = torch.empty(num_rows, heads.num_heads, heads.head_dim, dtype=dtype, device=place)
        calls.append(
            partial(
                qk_norm_rope_kv_write, qkv_TX, norm_weight, 1e-6, rope_PH, cache.k_cache, cache.v_cache, cache.tables,
                positions, rows, BLOCK_SIZE, out=out,
            )
        )  # fmt: skip
    return calls
