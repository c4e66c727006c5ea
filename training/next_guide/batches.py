"""Training batches: conversations packed into rows.

Several examples share a row: [ example | example | ... | padding ]. Each has its own positions and sees itself alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Example:
    """One conversation: token ids, which of them are learnt, and after which of them a topic is chosen (else -1)."""

    ids: list[int] = field(default_factory=list)
    learnt: list[bool] = field(default_factory=list)
    topics: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    next_position: int = 0

    def skip(self, count: int) -> None:
        """Leave out `count` tokens: what follows stands so much further behind."""
        self.next_position += count

    def add(self, ids: list[int], *, learnt: bool = False, topic: int = -1) -> None:
        """Append a piece of the conversation; after each of its tokens `topic` is to be chosen."""
        self.ids += ids
        self.learnt += [learnt] * len(ids)
        self.topics += [topic] * len(ids)
        self.positions += range(self.next_position, self.next_position + len(ids))
        self.next_position += len(ids)

    def cut(self, length: int) -> Example:
        """Return the first `length` tokens."""
        return Example(self.ids[:length], self.learnt[:length], self.topics[:length], self.positions[:length])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed examples; R=rows, T=positions."""

    ids_RT: Tensor
    positions_RT: Tensor
    learnt_RT: Tensor  # whether the token at this place is a target
    topics_RT: Tensor  # the topic to choose behind this token, else -1
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
    return _as_batch(rows, width)


def pack(examples: Sequence[Example], width: int = 0) -> Batch:
    """Pack examples first-fit, the longest first, into rows of at least `width` positions."""
    rows: list[list[Example]] = []
    left: list[int] = []
    ordered = sorted(examples, key=lambda example: -len(example.ids))
    width = max(width, len(ordered[0].ids))
    for example in ordered:
        row = next((index for index, room in enumerate(left) if room >= len(example.ids)), len(rows))
        if row == len(rows):
            rows.append([])
            left.append(width)
        rows[row].append(example)
        left[row] -= len(example.ids)
    return _as_batch(rows, width)


def _as_batch(rows: Sequence[Sequence[Example]], width: int) -> Batch:
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions, owner = torch.zeros_like(ids), torch.full_like(ids, -1)
    learnt, topics = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, -1)
    for r, row in enumerate(rows):
        start = 0
        for number, example in enumerate(row):
            end = start + len(example.ids)
            ids[r, start:end] = torch.tensor(example.ids)
            positions[r, start:end] = torch.tensor(example.positions)
            owner[r, start:end] = number
            learnt[r, start:end] = torch.tensor(example.learnt)
            topics[r, start:end] = torch.tensor(example.topics)
            start = end
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    mask = (owner[:, :, None] == owner[:, None, :]) & causal
    return Batch(ids, positions, learnt, topics, mask[:, None])
