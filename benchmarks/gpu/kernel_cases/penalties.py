"""Penalties and biases on logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton import row_layout
from app.kernels.triton.sampling.penalties import apply_penalties
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, integers, randn
from benchmarks.gpu.kernel_cases.sample import VOCAB, state_rows
from benchmarks.gpu.timing import Call, num_copies


def cases() -> Iterator[Case]:
    """Yield rows without penalties, which cost a launch, and with them."""
    for num_rows in (256, 1):
        for is_penalized in (False, True):
            yield case(num_rows, is_penalized=is_penalized)


def case(num_rows: int, *, is_penalized: bool, vocab: int = VOCAB) -> Case:
    """Return the case of so many rows."""
    num_bytes = 10 * num_rows * vocab if is_penalized else 0  # logits and counts in, logits out
    words = "penalized" if is_penalized else "plain"
    setup = partial(_setup, num_rows, vocab, is_penalized, num_copies(10 * num_rows * vocab))
    return Case(f"{num_rows} rows {words}", Work(num_bytes), setup)


def _setup(num_rows: int, vocab: int, is_penalized: bool, copies: int, place: torch.device) -> Sequence[Call]:
    state_SW = state_rows(num_rows, {"temperature": 0.6}, place)
    if is_penalized:
        state_SW[1:, row_layout.FLAGS] = row_layout.CHANGES_LOGITS | row_layout.PENALIZES
        state_SW[1:, row_layout.PRESENCE] = row_layout.float_bits(0.5)
    seen_SV = torch.randint(0, 3, (num_rows + 1, vocab), dtype=torch.int16, device=place)
    # Masks as the kernel gets them in every step; no row has one.
    masks = (torch.zeros(1, -(-vocab // 32), dtype=torch.int32, device=place), integers([0] * num_rows, place))
    rows = (integers(range(1, num_rows + 1), place), integers(range(num_rows), place), integers([9] * num_rows, place))
    given = (state_SW, seen_SV, *masks, *rows)
    calls: list[Call] = []
    for _ in range(copies):
        logits_RV = randn(num_rows, vocab, place=place, dtype=torch.float32)
        calls.append(partial(apply_penalties, logits_RV, *given, out=torch.empty_like(logits_RV)))
    return calls
