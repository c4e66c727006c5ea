"""Sampling of a token for each row of logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from app.kernels.triton import row_layout
from app.kernels.triton.sampling.sample import sample, scratch_width
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, integers, randn
from benchmarks.gpu.timing import Call, num_copies

VOCAB = 151936
ROWS = (256, 64, 1)
WAYS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "T=0.6": {"temperature": 0.6},
    "top-p 0.95": {"temperature": 0.6, "top_p": 0.95},
    "top-k 50": {"temperature": 0.6, "top_k": 50},
}


def cases() -> Iterator[Case]:
    """Yield the ways of sampling, for the largest batch first."""
    for num_rows in ROWS:
        for way in WAYS:
            yield case(num_rows, way)


def case(num_rows: int, way: str, vocab: int = VOCAB) -> Case:
    """Return the case of `num_rows` rows that are sampled in one way."""
    num_bytes = 4 * num_rows * vocab
    return Case(f"{num_rows} rows {way}", Work(num_bytes), partial(_setup, num_rows, vocab, way, num_copies(num_bytes)))


def state_rows(num_rows: int, params: Mapping[str, float], place: torch.device) -> Tensor:
    """Return state rows for this way of sampling: row 0 is padding."""
    state_SW = torch.zeros(num_rows + 1, row_layout.row_width(8), dtype=torch.int32)
    rows, top_p, top_k = state_SW[1:], params.get("top_p", 1.0), params.get("top_k", 0)
    rows[:, row_layout.FLAGS] = row_layout.FILTERS if top_p < 1 or top_k else 0
    rows[:, row_layout.SEED_LOW] = torch.arange(num_rows, dtype=torch.int32)
    rows[:, row_layout.TEMPERATURE] = row_layout.float_bits(params["temperature"])
    rows[:, row_layout.TOP_K], rows[:, row_layout.TOP_P] = int(top_k), row_layout.float_bits(top_p)
    rows[:, row_layout.REPETITION] = row_layout.float_bits(1.0)
    return state_SW.to(place)


def _setup(num_rows: int, vocab: int, way: str, copies: int, place: torch.device) -> Sequence[Call]:
    state_SW = state_rows(num_rows, WAYS[way], place)
    sampled_rows, logit_rows = integers(range(1, num_rows + 1), place), integers(range(num_rows), place)
    positions = integers([1000] * num_rows, place)
    scratch_RX = torch.zeros(num_rows, scratch_width(vocab), dtype=torch.int32, device=place)
    tokens_R = torch.zeros(num_rows, dtype=torch.int32, device=place)
    calls: list[Call] = []
    for _ in range(copies):
        logits_RV = randn(num_rows, vocab, place=place, dtype=torch.float32)
        calls.append(
            partial(
                sample, logits_RV, logits_RV, state_SW, sampled_rows, logit_rows, positions, scratch_RX=scratch_RX,
                tokens_R=tokens_R,
            )
        )  # fmt: skip
    return calls
