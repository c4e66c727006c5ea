"""Steps for the kernel tests: sequences with a context and new tokens in a shuffled paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.kernels.ops import PagedBatch, pad_rows


@dataclass
class Heads:
    """Head counts and head width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass
class Step:
    """One step: its batch, and a cache of random values."""

    batch: PagedBatch
    k_cache_BKGH: Tensor
    v_cache_BKGH: Tensor

    @property
    def num_rows(self) -> int:
        """Token rows, padding included."""
        return len(self.batch.positions_T)

    def caches(self) -> tuple[Tensor, Tensor]:
        """Copies of the cache."""
        return self.k_cache_BKGH.clone(), self.v_cache_BKGH.clone()


def make_step(
    chunks: Sequence[tuple[int, int]], heads: Heads, *, block_size: int = 16, dtype: torch.dtype = torch.float32
) -> Step:
    """A step of sequences given as (tokens before, new tokens); their blocks are scattered over the cache."""
    generator = torch.Generator().manual_seed(len(chunks))
    counts = [-(-(start + new) // block_size) for start, new in chunks]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks - 1, generator=generator) + 1  # block 0 pads
    tables_SB = torch.zeros(len(chunks) + 1, max(counts, default=1) + 1, dtype=torch.int32)
    for row, (count, blocks) in enumerate(zip(counts, order[: sum(counts)].split(counts), strict=True), 1):
        tables_SB[row, :count] = blocks
    num_tokens = sum(new for _, new in chunks)
    padding = torch.zeros(pad_rows(num_tokens) - num_tokens, dtype=torch.int64)
    positions = [torch.arange(start, start + new) for start, new in chunks]
    rows = [torch.full((new,), row) for row, (_, new) in enumerate(chunks, 1)]
    batch = PagedBatch(num_tokens, torch.cat([*positions, padding]), torch.cat([*rows, padding]), tables_SB, block_size)
    shape = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
    k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    k[0] = v[0] = 0
    return Step(batch, k, v)


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal random numbers; equal arguments give equal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
