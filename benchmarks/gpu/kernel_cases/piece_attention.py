"""Attention in pieces: what decodes beside a prompt, and few new tokens behind a long prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.attention.attention_configs import Kind, attention_config
from app.kernels.triton.attention.grids import AttentionGrids
from app.kernels.triton.attention.piece_attention import piece_attention, piece_scratch_sizes
from app.kernels.triton.attention.work import MixedWork
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import Case, Heads, integers, paged, processors, randn
from benchmarks.gpu.timing import Call, num_copies

G4 = Heads(32, 8, 128)
KINDS: tuple[Kind, ...] = ("decode", "pieces", "prefill")
# (sequences, context, new tokens of each).
STEPS = ((128, 1024, 1), (8, 1024, 1), (1, 32768, 1), (1, 32768, 16), (1, 1024, 16))


def cases() -> Iterator[Case]:
    """Yield steps of rows that decode and of short chunks."""
    for num_seqs, context, num_new in STEPS:
        yield case(num_seqs, context, num_new, G4)


def case(num_seqs: int, context: int, num_new: int, heads: Heads, dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of so many sequences whose last `num_new` tokens are new."""
    num_bytes = 2 * num_seqs * context * heads.num_kv_heads * heads.head_dim * BF16
    operations = 4 * num_seqs * num_new * context * heads.num_heads * heads.head_dim
    about = {"sequences": num_seqs, "context": context, "new": num_new, "rate": True}
    setup = partial(_setup, num_seqs, context, num_new, heads, dtype, num_copies(num_bytes))
    return Case(f"{num_seqs} x {num_new} behind {context} {heads}", Work(num_bytes, operations), setup, about)


def _setup(
    num_seqs: int, context: int, num_new: int, heads: Heads, dtype: torch.dtype, copies: int, place: torch.device
) -> Sequence[Call]:
    cache = paged(place, copies * num_seqs, context, heads, dtype)
    num_processors, capability = processors(place)
    facts, num_kv_heads = (heads.head_dim, dtype, dtype, capability), heads.num_kv_heads
    decode, pieces, prefill = (attention_config(kind, *facts) for kind in KINDS)
    grids = AttentionGrids(heads.num_heads // num_kv_heads, num_kv_heads, num_processors, decode, pieces, prefill)
    num_rows, lists = num_seqs * num_new, MixedWork(grids, num_seqs, num_seqs * num_new)
    work = lists.of([context - num_new] * num_seqs, [num_new] * num_seqs, num_rows)
    floats, ints = piece_scratch_sizes(lists.sizes.slots, num_kv_heads, heads.head_dim, grids.pieces.block_m)
    counts, pieces_PX = integers([len(work.pieces_PX), 0], place), integers(torch.from_numpy(work.pieces_PX), place)
    positions = integers(torch.arange(context - num_new, context).repeat(num_seqs), place)
    calls: list[Call] = []
    for copy in range(copies):
        q_TNH = randn(num_rows, heads.num_heads, heads.head_dim, place=place, dtype=dtype)
        rows = integers(torch.arange(num_seqs).repeat_interleave(num_new) + 1 + copy * num_seqs, place)
        calls.append(partial(
            piece_attention, q_TNH, cache.k_cache, cache.v_cache, cache.tables, positions, rows, counts, pieces_PX,
            heads.head_dim**-0.5, None, partials=torch.empty(floats, device=place),
            counters=torch.zeros(ints, dtype=torch.int32, device=place), num_programs=work.num_programs,
            config=grids.pieces, out=torch.empty_like(q_TNH),
        ))  # fmt: skip
    return calls
