"""Attention of complete prompts, causal; beside torch's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.attention.attention_configs import attention_config
from app.kernels.triton.attention.grids import AttentionGrids
from app.kernels.triton.attention.prefill_attention import prefill_attention
from app.kernels.triton.attention.work import MixedWork
from benchmarks.gpu.bounds import BF16, Work
from benchmarks.gpu.cases import Case, Heads, integers, paged, processors, randn
from benchmarks.gpu.timing import Call

G4, NARROW = Heads(32, 8, 128), Heads(32, 8, 64)
TOKENS = 8192  # of all prompts together
LENGTHS = (8192, 4096, 2048, 1024, 512)


def cases() -> Iterator[Case]:
    """Yield the lengths, the longest first, for Quire and for torch's scaled_dot_product_attention."""
    for heads in (G4, NARROW):
        for length in LENGTHS:
            yield case(TOKENS // length, length, heads)
            yield case(TOKENS // length, length, heads, by="torch SDPA")


def case(num_prompts: int, length: int, heads: Heads, by: str = "quire", dtype: torch.dtype = torch.bfloat16) -> Case:
    """Return the case of so many prompts of a length."""
    operations = num_prompts * 4 * (length * length / 2) * heads.num_heads * heads.head_dim
    num_rows = num_prompts * length
    num_bytes = 2 * num_rows * (heads.num_heads + heads.num_kv_heads) * heads.head_dim * BF16
    about = {"by": by, "prompt": length, "prompts": num_prompts, "head_dim": heads.head_dim}
    setup = partial(_setup if by == "quire" else _setup_torch, num_prompts, length, heads, dtype)
    return Case(f"{num_prompts} x {length} {heads} {by}", Work(num_bytes, operations), setup, about)


def _setup(num_prompts: int, length: int, heads: Heads, dtype: torch.dtype, place: torch.device) -> Sequence[Call]:
    cache = paged(place, num_prompts, length, heads, dtype)
    config = attention_config("prefill", heads.head_dim, dtype, dtype, processors(place)[1])
    num_rows = num_prompts * length
    q_TNH = randn(num_rows, heads.num_heads, heads.head_dim, place=place, dtype=dtype)
    positions = integers(torch.arange(length).repeat(num_prompts), place)
    rows = integers(torch.arange(1, num_prompts + 1).repeat_interleave(length), place)
    grids = AttentionGrids(heads.num_heads // heads.num_kv_heads, heads.num_kv_heads, 1, config, config, config)
    tiles = MixedWork(grids, num_prompts, num_rows).of([0] * num_prompts, [length] * num_prompts, num_rows).tiles_TX
    call = partial(
        prefill_attention, q_TNH, cache.k_cache, cache.v_cache, cache.tables, positions, rows,
        integers([0, len(tiles)], place), integers(torch.from_numpy(tiles), place), heads.head_dim**-0.5, None,
        num_programs=grids.tile_programs(num_rows), config=config, out=torch.empty_like(q_TNH),
    )  # fmt: skip
    return [call]


def _setup_torch(
    num_prompts: int, length: int, heads: Heads, dtype: torch.dtype, place: torch.device
) -> Sequence[Call]:
    q, k, v = (
        randn(num_prompts, count, length, heads.head_dim, place=place, dtype=dtype)
        for count in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    return [partial(attend, q, k, v, is_causal=True, enable_gqa=True)]
