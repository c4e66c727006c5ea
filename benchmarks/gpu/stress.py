"""S1: decode attention in one launch on random ragged batches: the same bits every time, and what two launches give.

The last of a row's programs adds what the others have left in memory, so a missing fence shows as a difference now and
then; the more so beside other work on the GPU, which moves the programs' ends against each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from app.kernels.triton.attention.attention_configs import attention_config
from app.kernels.triton.attention.decode_attention import decode_attention, scratch_sizes
from app.kernels.triton.attention.grids import WHOLE_TOKENS, AttentionGrids
from benchmarks.gpu.cases import Heads, integers, paged, processors, randn
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.tasks import Task

NUM_BATCHES, REPEATS = 25_000, 3  # 100,000 launches, or as many as there is time for
MAX_ROWS, MAX_CONTEXT = 64, 4096
TOLERANCE = 2e-2  # of bf16: half a step in 64
HEADS = (Heads(32, 8, 128), Heads(32, 8, 64))
LOOK = 50  # batches between looks at what was found: each waits for the GPU
SPARE_S = 2.0
SIDE_WIDTH = 1024  # of a product that takes some multiprocessors for some microseconds


class Sizes(NamedTuple):
    """How large the batches are."""

    max_rows: int = MAX_ROWS
    max_context: int = MAX_CONTEXT
    dtype: torch.dtype = torch.bfloat16


def measure(task: Task) -> Iterator[Figure]:
    """Stress the kernel; see Measures."""
    yield stress(torch.device("cuda"), NUM_BATCHES, HEADS, Sizes(), task.deadline)


def stress(place: torch.device, num_batches: int, kinds: tuple[Heads, ...], sizes: Sizes, deadline: float) -> Figure:
    """Return how many batches gave other bits when repeated, or other numbers than two launches do."""
    generator = torch.Generator("cpu").manual_seed(0)
    torch.manual_seed(0)
    caches = {heads: paged(place, sizes.max_rows, sizes.max_context, heads, sizes.dtype) for heads in kinds}
    found = torch.zeros(2, dtype=torch.int64, device=place)
    worst = torch.zeros((), device=place)
    disturb = _side_work(place)
    num_done = 0
    for index in range(num_batches):
        if time.monotonic() > deadline - SPARE_S:
            break
        heads = kinds[index % len(kinds)]
        attend = partial(_batch(heads, caches[heads], sizes, generator, place))
        first, two = attend(one_launch=True), attend(one_launch=False)
        differs = torch.zeros((), dtype=torch.bool, device=place)
        for _ in range(REPEATS - 1):
            disturb()
            differs |= (attend(one_launch=True) != first).any() | first.isnan().any()
        error = (first.float() - two.float()).abs().max() if first.numel() else torch.zeros((), device=place)
        found += torch.stack([differs, error > TOLERANCE])
        worst = torch.maximum(worst, error)
        num_done += 1
        if index % LOOK == LOOK - 1 and bool(found.any()):
            break
    repeated, apart = (int(count) for count in found)
    about = {
        "batches": num_done,
        "launches_each": REPEATS + 1,
        "other_bits_when_repeated": repeated,
        "other_than_two_launches": apart,
        "largest_error": float(worst),
        "note": f"of {num_done} batches; largest error against two launches {float(worst):.2g}",
    }
    return Figure("differences", "", (float(repeated + apart),), about=about)


def _side_work(place: torch.device) -> Callable[[], None]:
    """Return a call that lets the GPU do something else at the same time."""
    if place.type != "cuda":
        return lambda: None
    stream, left = torch.cuda.Stream(), randn(SIDE_WIDTH, SIDE_WIDTH, place=place)  # type: ignore[no-untyped-call]
    out = torch.empty_like(left)

    def disturb() -> None:
        with torch.cuda.stream(stream):
            torch.mm(left, left, out=out)

    return disturb


def _batch(
    heads: Heads, cache: tuple[Tensor, Tensor, Tensor], sizes: Sizes, generator: torch.Generator, place: torch.device
) -> Callable[..., Tensor]:
    """Return a call that attends over a random batch: `num_rows` contexts, some of them 0 (padding) or 1."""
    num_rows = int(torch.randint(1, sizes.max_rows + 1, (1,), generator=generator))
    contexts = torch.randint(0, sizes.max_context + 1, (num_rows,), generator=generator)
    kinds = torch.randint(0, 8, (num_rows,), generator=generator)
    contexts[kinds == 0], contexts[kinds == 1] = 0, 1
    q_TNH = randn(num_rows, heads.num_heads, heads.head_dim, place=place, dtype=sizes.dtype)
    num_processors, capability = processors(place)
    config = attention_config("decode", heads.head_dim, sizes.dtype, sizes.dtype, capability)
    group = heads.num_heads // heads.num_kv_heads
    grids = AttentionGrids(group, heads.num_kv_heads, num_processors, config, config, config)
    num_splits = grids.decode_splits(num_rows, 2 * WHOLE_TOKENS)
    partials, counters = scratch_sizes(num_rows, *heads[:2], heads.head_dim, num_splits)
    k_cache, v_cache, tables = cache
    where = (tables, integers(contexts - 1, place), integers(torch.arange(1, num_rows + 1), place))
    options: dict[str, Any] = {
        "partials": torch.empty(partials, device=place),
        "counters": torch.zeros(counters, dtype=torch.int32, device=place),
        "num_splits": num_splits,
        "config": config,
    }

    def attend(*, one_launch: bool) -> Tensor:
        out = torch.full_like(q_TNH, float("nan"))
        decode_attention(
            q_TNH, k_cache, v_cache, *where, heads.head_dim**-0.5, None, one_launch=one_launch, out=out, **options
        )
        return out

    return attend
