"""Attention of one token for each sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.ops import PagedBatch
from app.kernels.triton.attention.paged_attention import PagedAttention
from benchmarks.gpu.bounds import BF16, FP8, Work
from benchmarks.gpu.cases import BLOCK_SIZE, Case, Heads, integers, paged, processors, randn
from benchmarks.gpu.timing import Call, num_copies

G4, G2, NARROW = Heads(32, 8, 128), Heads(16, 8, 128), Heads(32, 8, 64)
BATCHES, CONTEXTS = (256, 128, 64, 32, 8, 1), (1024, 4096, 512, 16384)
KINDS = ((G4, "bf16"), (G4, "fp8"), (NARROW, "bf16"), (G2, "bf16"))
DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def cases() -> Iterator[Case]:
    """Yield batch sizes and contexts, for the heads of Llama-8B and Qwen3-8B first."""
    for heads, kv in KINDS:
        for context in CONTEXTS:
            for batch in BATCHES:
                yield case(batch, context, heads, kv)


def case(batch: int, context: int, heads: Heads, kv: str) -> Case:
    """Return the case of so many sequences of a context."""
    item = FP8 if kv == "fp8" else BF16
    num_pairs = batch * context
    num_bytes = 2 * num_pairs * heads.num_kv_heads * heads.head_dim * item
    rows = 2 * batch * heads.num_heads * heads.head_dim * BF16
    operations = 4 * num_pairs * heads.num_heads * heads.head_dim
    about = {
        "batch": batch,
        "context": context,
        "tokens": num_pairs,
        "head_dim": heads.head_dim,
        "kv": kv,
        "rate": True,
    }
    setup = partial(_setup, batch, context, heads, DTYPES[kv], num_copies(num_bytes))
    return Case(f"B={batch} {context} {heads} {kv}", Work(num_bytes + rows, operations), setup, about)


def _setup(
    batch: int, context: int, heads: Heads, kv_dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    dtype = torch.float32 if kv_dtype == torch.float32 else torch.bfloat16
    cache = paged(place, copies * batch, context, heads, kv_dtype)
    num_processors, capability = processors(place)
    attention = PagedAttention(
        place,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        dtype=dtype,
        cache_dtype=kv_dtype,
        max_rows=batch,
        max_context=context,
        num_processors=num_processors,
        capability=capability,
        is_deterministic=False,
    )
    calls = []
    for copy in range(copies):
        q_TNH = randn(batch, heads.num_heads, heads.head_dim, place=place, dtype=dtype)
        rows = integers(range(1 + copy * batch, 1 + (copy + 1) * batch), place)
        positions = integers([context - 1] * batch, place)
        num_splits = attention.grids.decode_splits(batch, context)
        where = PagedBatch(batch, positions, rows, cache.tables, BLOCK_SIZE, num_splits=num_splits)
        out = torch.empty_like(q_TNH)
        scale = heads.head_dim**-0.5
        calls.append(partial(attention.attend, q_TNH, cache.k_cache, cache.v_cache, where, scale, None, out=out))
    return calls
