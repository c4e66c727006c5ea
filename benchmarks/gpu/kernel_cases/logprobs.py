"""Log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.contract.sampling_params import MAX_LOGPROBS
from app.kernels.triton import row_layout
from app.kernels.triton.sampling.logprobs import logprobs
from app.kernels.triton.sampling.sample import scratch_width
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, integers, randn
from benchmarks.gpu.kernel_cases.sample import VOCAB, state_rows
from benchmarks.gpu.timing import Call, num_copies

PLACES = 8


def cases() -> Iterator[Case]:
    """Yield rows that want none, which costs a launch or two, and rows that want 5."""
    for num_rows in (256, 1):
        for num_wanted in (None, 5):
            yield case(num_rows, num_wanted)


def case(num_rows: int, num_wanted: int | None, vocab: int = VOCAB) -> Case:
    """Return the case of so many rows."""
    num_bytes = 0 if num_wanted is None else 4 * num_rows * vocab
    setup = partial(_setup, num_rows, vocab, num_wanted, num_copies(4 * num_rows * vocab))
    return Case(f"{num_rows} rows {'none' if num_wanted is None else num_wanted}", Work(num_bytes), setup)


def _setup(num_rows: int, vocab: int, num_wanted: int | None, copies: int, place: torch.device) -> Sequence[Call]:
    state_SW = state_rows(num_rows, {"temperature": 0.6}, place)
    state_SW[1:, row_layout.NUM_LOGPROBS] = -1 if num_wanted is None else num_wanted
    if num_wanted is not None:
        state_SW[1:, row_layout.FLAGS] = row_layout.LOGPROBS
    sampled_rows, tokens_R = integers(range(1, num_rows + 1), place), integers(range(num_rows), place)
    scratch_RX = torch.zeros(num_rows, scratch_width(vocab), dtype=torch.int32, device=place)
    shape = (PLACES, num_rows, 1 + MAX_LOGPROBS)
    values, ids = (torch.zeros(shape, dtype=dtype, device=place) for dtype in (torch.float32, torch.int32))
    counter = integers([0], place)
    calls: list[Call] = []
    for _ in range(copies):
        logits_RV = randn(num_rows, vocab, place=place, dtype=torch.float32)
        calls.append(
            partial(
                logprobs, logits_RV, tokens_R, state_SW, sampled_rows, scratch_RX=scratch_RX, values_ring_KRN=values,
                ids_ring_KRN=ids, counter=counter,
            )
        )  # fmt: skip
    return calls
