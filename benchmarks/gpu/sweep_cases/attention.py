"""Attention where its launch grid decides: splits, room for chunks, splits of a fixed size, long prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.ops import PagedBatch
from app.kernels.triton.attention.attention_configs import attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.paged_attention import PagedAttention
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import BLOCK_SIZE, Case, Heads, Paged, integers, paged, processors, randn
from benchmarks.gpu.timing import Call, num_copies

G4, G2, G8 = Heads(32, 8, 128), Heads(16, 8, 128), Heads(16, 2, 128)
# Heads, sequences, context, numbers of splits.
SPLITS = (
    (G4, 256, 1024, (1, 2, 4, 8)),
    (G4, 256, 512, (1, 2, 4)),
    (G4, 32, 1024, (1, 2, 4, 8, 16)),
    (G4, 1, 1024, (4, 8, 16, 32)),
    (G2, 256, 1024, (1, 2, 4)),
    (G8, 1, 65536, (8, 16, 32)),
)
CHUNKS = (256, 1)
PROMPT, BATCH, CONTEXT = 64, 256, 1024
PREFIX, NEW = 32768, 20


def splits() -> Iterator[Case]:
    """Yield decode with its contexts cut into more and more splits."""
    for heads, batch, context, numbers in SPLITS:
        for num_splits in numbers:
            yield split_case(heads, batch, context, num_splits)


def mixed_steps() -> Iterator[Case]:
    """Yield one short prompt in a step of an engine of many sequences, and of one: what room for the others costs."""
    for num_chunks in CHUNKS:
        yield chunk_case(f"{PROMPT} tokens, room for {num_chunks} chunks", G4, PROMPT, 0, num_chunks)


def orders() -> Iterator[Case]:
    """Yield decode of a large batch as it is fastest, and with splits of a fixed size."""
    for is_deterministic in (False, True):
        yield order_case(G4, BATCH, CONTEXT, is_deterministic)


def prefixes() -> Iterator[Case]:
    """Yield a short message behind a long prefix that is in the cache."""
    yield chunk_case(f"{NEW} tokens behind {PREFIX}", G4, NEW, PREFIX - NEW, 8)


def split_case(heads: Heads, batch: int, context: int, num_splits: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of decode in so many splits."""
    work = Work(2 * batch * context * heads.num_kv_heads * heads.head_dim * BF16)
    setup = partial(_decode_in_splits, heads, batch, context, num_splits, dtype, num_copies(work.num_bytes))
    return Case(f"B={batch} {context} {heads}, {num_splits}", work, setup, {"splits": num_splits, "rate": True})


def chunk_case(
    name: str, heads: Heads, num_new: int, begin: int, num_chunks: int, dtype: torch.dtype = torch.bfloat16
) -> Case:
    """Return the case of one chunk of `num_new` tokens from position `begin` on, in a step with room for many."""
    setup = partial(_chunk, heads, num_new, begin, num_chunks, dtype)
    return Case(name, Work(2 * (begin + num_new) * heads.num_kv_heads * heads.head_dim * BF16), setup)


def order_case(
    heads: Heads, batch: int, context: int, is_deterministic: bool, dtype: torch.dtype = torch.bfloat16
) -> Case:
    """Return the case of decode, deterministic or not."""
    work = Work(2 * batch * context * heads.num_kv_heads * heads.head_dim * BF16)
    setup = partial(_decode, heads, batch, context, is_deterministic, dtype)
    name = "fixed splits" if is_deterministic else "as it is fastest"
    return Case(f"B={batch} {context} {heads}, {name}", work, setup, {"rate": True})


def _decode_in_splits(
    heads: Heads, batch: int, context: int, num_splits: int, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    cache = paged(place, copies * batch, context, heads, dtype)
    config = attention_config("decode", heads.head_dim, dtype, dtype, processors(place)[1])
    size, num_counters = scratch_sizes(batch, *heads, num_splits)
    partials = torch.empty(size, dtype=torch.float32, device=place)
    counters = torch.zeros(num_counters, dtype=torch.int32, device=place)
    calls: list[Call] = []
    for copy in range(copies):
        q_TNH = randn(batch, heads.num_heads, heads.head_dim, place=place, dtype=dtype)
        positions = integers([context - 1] * batch, place)
        rows = integers(range(1 + copy * batch, 1 + (copy + 1) * batch), place)
        calls.append(
            partial(
                decode_attention, q_TNH, cache.k_cache, cache.v_cache, cache.tables, positions, rows,
                heads.head_dim**-0.5, None, partials=partials, counters=counters, num_splits=num_splits, config=config,
                out=torch.empty_like(q_TNH),
            )
        )  # fmt: skip
    return calls


def _chunk(
    heads: Heads, num_new: int, begin: int, num_chunks: int, dtype: torch.dtype, place: torch.device
) -> Sequence[Call]:
    context = begin + num_new
    attention = _attention(heads, num_chunks, num_new, context, dtype, place)
    made, sizes = attention.mixed_work.of([begin], [num_new], num_new), attention.mixed_work.sizes
    work = torch.zeros(sizes.length, dtype=torch.int32)
    for first, run in made.numbers(sizes):
        work[first : first + len(run)] = torch.from_numpy(run)
    positions, rows = integers(range(begin, context), place), integers([1] * num_new, place)
    cache = paged(place, 1, context, heads, dtype)
    step = PagedBatch(num_new, positions, rows, cache.tables, BLOCK_SIZE, work.to(place), made.num_programs)
    return [_attend(attention, heads, cache, step, dtype, place)]


def _decode(
    heads: Heads, batch: int, context: int, is_deterministic: bool, dtype: torch.dtype, place: torch.device
) -> Sequence[Call]:
    attention = _attention(heads, batch, batch, context, dtype, place, is_deterministic=is_deterministic)
    num_splits = attention.grids.decode_splits(batch, context)
    positions, rows = integers([context - 1] * batch, place), integers(range(1, batch + 1), place)
    cache = paged(place, batch, context, heads, dtype)
    step = PagedBatch(batch, positions, rows, cache.tables, BLOCK_SIZE, num_splits=num_splits)
    return [_attend(attention, heads, cache, step, dtype, place)]


def _attention(
    heads: Heads, max_seqs: int, max_tokens: int, max_context: int, dtype: torch.dtype, place: torch.device, *,
    is_deterministic: bool = False,
) -> PagedAttention:  # fmt: skip
    """Return attention as the engine has it."""
    num_processors, capability = processors(place)
    return PagedAttention(
        place,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        dtype=dtype,
        cache_dtype=dtype,
        max_rows=max_seqs,
        max_tokens=max_tokens,
        max_context=max_context,
        num_processors=num_processors,
        capability=capability,
        is_deterministic=is_deterministic,
    )


def _attend(
    attention: PagedAttention, heads: Heads, cache: Paged, step: PagedBatch, dtype: torch.dtype, place: torch.device
) -> Call:
    """Return the attention of a step, as the engine calls it."""
    q_TNH = randn(step.num_tokens, heads.num_heads, heads.head_dim, place=place, dtype=dtype)
    caches, scale = (cache.k_cache, cache.v_cache), heads.head_dim**-0.5
    return partial(attention.attend, q_TNH, *caches, step, scale, None, out=torch.empty_like(q_TNH))
