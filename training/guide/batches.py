"""Training batches of the reciter: conversations packed into rows.

Several examples share a row: [ example | example | ... | the last one, cut ]. Each has its own positions and sees
itself alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Example:
    """One conversation: token ids, and which of them are learnt."""

    ids: list[int] = field(default_factory=list)
    learnt: list[bool] = field(default_factory=list)

    def add(self, ids: list[int], *, learnt: bool = False) -> None:
        """Append a piece of the conversation."""
        self.ids += ids
        self.learnt += [learnt] * len(ids)

    def cut(self, length: int) -> Example:
        """Return the first `length` tokens."""
        return Example(self.ids[:length], self.learnt[:length])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed examples; R=rows, T=positions."""

    ids_RT: Tensor
    positions_RT: Tensor
    learnt_RT: Tensor  # whether the token at this place is a target
    mask_R1TT: Tensor


def fill_rows(make_example: Callable[[], Example], num_rows: int, width: int) -> Batch:
    """Fill `num_rows` rows of `width` positions with new examples; the last one of a row is cut where it ends."""
    rows = []
    for _ in range(num_rows):
        row, left = [], width
        while left > 0:
            row.append(make_example().cut(left))
            left -= len(row[-1].ids)
        rows.append(row)
    return as_batch(rows, width)


def as_batch(rows: Sequence[Sequence[Example]], width: int) -> Batch:
    """Put rows of examples, each at most `width` long together, into one batch."""
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions, owner = torch.zeros_like(ids), torch.full_like(ids, -1)
    learnt = torch.zeros_like(ids, dtype=torch.bool)
    for r, row in enumerate(rows):
        start = 0
        for number, example in enumerate(row):
            end = start + len(example.ids)
            ids[r, start:end] = torch.tensor(example.ids)
            positions[r, start:end] = torch.arange(end - start)
            owner[r, start:end] = number
            learnt[r, start:end] = torch.tensor(example.learnt)
            start = end
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    mask = (owner[:, :, None] == owner[:, None, :]) & causal
    return Batch(ids, positions, learnt, mask[:, None])
