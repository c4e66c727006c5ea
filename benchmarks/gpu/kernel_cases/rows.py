"""What state rows cost in a step: tokens gathered from them, and sampled ones written back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.rows import advance, gather_decodes
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, integers
from benchmarks.gpu.kernel_cases.sample import state_rows
from benchmarks.gpu.timing import Call

VOCAB, PLACES = 4096, 8


def cases() -> Iterator[Case]:
    """Yield both kernels for a large batch and for one row; they move next to nothing."""
    for num_rows in (256, 1):
        yield Case(f"gather {num_rows}", Work(0), partial(_gather, num_rows))
        yield Case(f"advance {num_rows}", Work(0), partial(_advance, num_rows))


def _gather(num_rows: int, place: torch.device) -> Sequence[Call]:
    state_SW, sampled_rows = state_rows(num_rows, {"temperature": 0.6}, place), integers(range(1, num_rows + 1), place)
    ids_T, positions_T, state_rows_T = (torch.zeros_like(sampled_rows) for _ in range(3))
    into = {"ids_T": ids_T, "positions_T": positions_T, "state_rows_T": state_rows_T}
    return [partial(gather_decodes, state_SW, sampled_rows, **into)]


def _advance(num_rows: int, place: torch.device) -> Sequence[Call]:
    state_SW = state_rows(num_rows, {"temperature": 0.6}, place)
    seen_SV = torch.zeros(num_rows + 1, VOCAB, dtype=torch.int16, device=place)
    tokens_R, sampled_rows = integers(range(num_rows), place), integers(range(1, num_rows + 1), place)
    positions_T, ring_KR = (
        integers([9] * num_rows, place),
        torch.zeros(PLACES, num_rows, dtype=torch.int32, device=place),
    )
    counter = integers([0], place)
    call = partial(
        advance, state_SW, seen_SV, tokens_R, sampled_rows, tokens_R, positions_T, ring_KR=ring_KR, counter=counter
    )
    return [call]
