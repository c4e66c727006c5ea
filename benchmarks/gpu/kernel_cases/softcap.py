"""cap · tanh(logits / cap), in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from app.kernels.triton.layers.softcap import softcap
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.cases import Case, randn
from benchmarks.gpu.timing import Call, num_copies

CAP, VOCAB = 30.0, 256000


def cases() -> Iterator[Case]:
    """Yield the logits of Gemma 2."""
    for num_rows in (256, 1):
        yield case(num_rows)


def case(num_rows: int, vocab: int = VOCAB) -> Case:
    """Return the case of so many rows."""
    num_bytes = 2 * 4 * num_rows * vocab
    return Case(f"{num_rows} rows", Work(num_bytes), partial(_setup, num_rows, vocab, num_copies(num_bytes)))


def _setup(num_rows: int, vocab: int, copies: int, place: torch.device) -> Sequence[Call]:
    calls: list[Call] = []
    for _ in range(copies):
        logits_RV = randn(num_rows, vocab, place=place, dtype=torch.float32)
        calls.append(partial(softcap, logits_RV, CAP, out=logits_RV))
    return calls
