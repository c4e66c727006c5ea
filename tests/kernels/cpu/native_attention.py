"""Steps for the native attention kernel: sequences with the same keys, values and queries in any step.

Keys, values and queries of a sequence depend only on its number and the position. Everything that a step must not read
is NaN: block 0, unused blocks, and blocks that no row attends to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from app.kernels.cpu import records
from app.kernels.cpu.attention_scratch import scratch_floats
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.records import Cache, Code, Matrix, PagedRows
from tests.kernels.batches import Heads, make_step, noise

# name -> (cache, queries, bound)
CACHES = {
    "float32": (torch.float32, torch.float32, 1e-5),
    "float16": (torch.float16, torch.float32, 1e-5),
    "bfloat16": (torch.bfloat16, torch.bfloat16, 1e-2),
    "int8 of float32": (torch.int8, torch.float32, 2e-4),
    "int8 of bfloat16": (torch.int8, torch.bfloat16, 2e-4),
}
# 64 and 128 have special code; 96 and 256 are full vectors, 5, 16, 24 and 80 partial ones.
HEADS = {
    "64": Heads(9, 3, 64),
    "64, 7 each": Heads(14, 2, 64),
    "64, own keys": Heads(2, 2, 64),
    "16, 71 each": Heads(71, 1, 16),
    "128": Heads(8, 2, 128),
    "256": Heads(2, 1, 256),
    "96": Heads(5, 1, 96),
    "80": Heads(4, 2, 80),
    "24": Heads(6, 2, 24),
    "16": Heads(3, 3, 16),
    "5": Heads(2, 1, 5),
}
LONGEST = 1700

Chunks = Sequence[tuple[int, int]]


def quantized(x: Tensor) -> Tensor:
    """Integers [..., head_dim] and the four bytes of their scale."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.cat([(x / scale).round().to(torch.int8), scale.view(torch.int8)], dim=-1)


def exact(x: Tensor) -> Tensor:
    """The content of a cache in float64."""
    if x.dtype != torch.int8:
        return x.double()
    scale = x[..., -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return x[..., :-4].double() * scale.double()


@cache
def normal(number: int, num_heads: int, head_dim: int) -> Tensor:
    """Random values that are the same for all kinds of caches."""
    return noise(LONGEST, num_heads, head_dim, seed=number)


@cache
def sequence(number: int, heads: tuple[int, int, int], kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, and the cached keys and values, of the first LONGEST positions of a sequence."""
    num_heads, num_kv_heads, head_dim = heads
    stored, dtype, _ = CACHES[kind]
    queries = normal(3 * number, num_heads, head_dim).to(dtype)
    pair = (normal(3 * number + i, num_kv_heads, head_dim) for i in (1, 2))
    keys, values = (quantized(x) if stored == torch.int8 else x.to(stored) for x in pair)
    return queries, keys, values


@dataclass
class Layer:
    """The inputs and outputs of one call of the kernel."""

    fields: records.Attention
    num_rows: int
    out: Tensor
    scratch: Tensor
    caches: Tensor
    kept: tuple[object, ...]

    def run(self, library: NativeLibrary, num_threads: int) -> Tensor:
        """Attention [rows, N, H]."""
        library.run(Code.ATTENTION, self.fields, self.num_rows, num_threads)
        library.run(Code.ATTENTION_MERGE, self.fields, self.num_rows, num_threads)
        num_heads, head_dim = self.fields.num_heads, self.fields.head_dim
        assert self.out[:, num_heads * head_dim :].isnan().all()
        return self.out[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim)).clone()


def make_layer(
    chunks: Chunks,
    heads: Heads,
    kind: str,
    *,
    window: int = 0,
    softcap: float = 0,
    block_size: int = 16,
    num_threads: int = 2,
    numbers: Sequence[int] | None = None,
    out_dtype: torch.dtype = torch.float32,
    unseen: float = 1e4,
) -> Layer:
    """A step of the sequences `numbers`; unused slots of their last blocks have the value `unseen`."""
    key = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
    step = make_step(chunks, heads, block_size=block_size)
    batch, num_rows = step.batch, step.batch.num_tokens
    stored, dtype, _ = CACHES[kind]
    width = heads.head_dim + 4 * (stored == torch.int8)
    # Keys and values of a block are adjacent, so the stride of a block is not its size.
    caches = torch.empty(len(step.k_cache_BKGH), 2, block_size, heads.num_kv_heads, width, dtype=stored)
    caches.view(torch.uint8).fill_(0xFF)  # NaN in every type, and in scales
    queries = torch.full((num_rows, heads.num_heads * heads.head_dim + 24), torch.nan, dtype=dtype)
    row = 0
    for index, (start, new) in enumerate(chunks):
        own = sequence(index if numbers is None else numbers[index], key, kind)
        queries[row : row + new, : heads.num_heads * heads.head_dim] = own[0][start : start + new].flatten(1)
        first = max(0, start - window + 1) // block_size if window else 0
        table = batch.block_tables_SB[index + 1, first : (start + new - 1) // block_size + 1].long()
        for half, tokens in enumerate(own[1:]):
            garbage = torch.full((1, heads.num_kv_heads, heads.head_dim), unseen)
            rest = quantized(garbage) if stored == torch.int8 else garbage.to(stored)
            padded = torch.cat([tokens[first * block_size : start + new], rest.expand(block_size, -1, -1)])
            caches[table, half] = padded[: len(table) * block_size].unflatten(0, (-1, block_size))
        row += new
    out = torch.full((num_rows, heads.num_heads * heads.head_dim + 40), torch.nan, dtype=out_dtype)
    scratch = torch.full((scratch_floats(*key, num_threads) + 64,), torch.nan)
    paged_rows = PagedRows(
        batch.positions_T.data_ptr(),
        batch.state_rows_T.data_ptr(),
        batch.block_tables_SB.data_ptr(),
        batch.block_tables_SB.stride(0),
        block_size,
    )
    fields = records.Attention(
        queries=Matrix.of(queries) if num_rows else Matrix(type=records.TYPES[dtype]),
        paged_rows=paged_rows,
        keys=Cache.of(caches[:, 0]),
        values=Cache.of(caches[:, 1]),
        out=Matrix.of(out) if num_rows else Matrix(type=records.TYPES[out_dtype]),
        parts=scratch.data_ptr(),
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        window=window,
        scale=heads.head_dim**-0.5,
        softcap=softcap,
    )
    return Layer(fields, num_rows, out, scratch, caches, (batch, queries))


def attend(library: NativeLibrary, chunks: Chunks, heads: Heads, kind: str, **options: object) -> Tensor:
    """Attention of all rows of a step."""
    layer = make_layer(chunks, heads, kind, **options)  # type: ignore[arg-type]
    return layer.run(library, int(options.get("num_threads", 2)))  # type: ignore[call-overload]
