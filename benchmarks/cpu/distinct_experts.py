"""How many experts have rows in the steps of a recorded model: what a step reads of a mixture follows from it.

Steps are replayed piece by piece, each up to a router, whose choice is then still in memory. That is for counting only,
not for measuring.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor

from app.kernels.cpu.expert_records import Route
from app.kernels.cpu.native_ops import Program
from app.kernels.cpu.records import Code, Record

Steps = list[tuple[int, list[int]]]
"""Of each step its tokens, and how many experts have rows in each layer that has experts."""


@contextmanager
def counted() -> Iterator[Steps]:
    """Count what all programs replay until the end, into what is yielded. One thread only."""
    steps: Steps = []
    replay = Program.replay

    def counting(
        program: Program, num_tokens: int, num_outputs: int, num_threads: int, ticks: Tensor | None = None
    ) -> None:
        ends = [index + 1 for index, code in enumerate(program.codes) if code == Code.ROUTE]
        found = []
        for begin, end in zip([0, *ends], [*ends, len(program.codes)], strict=True):
            replay(program.part(begin, end), num_tokens, num_outputs, num_threads)
            if end in ends:
                found.append(num_chosen(program.records[end - 1]))
        steps.append((num_tokens, found))

    setattr(Program, "replay", counting)  # noqa: B010
    try:
        yield steps
    finally:
        setattr(Program, "replay", replay)  # noqa: B010


def num_chosen(record: Record) -> int:
    """Return how many experts the record of a router has given rows."""
    route = Route.from_address(record.fields)
    starts = (ctypes.c_int32 * (route.count + 1)).from_address(route.starts)
    return sum(begin < end for begin, end in pairwise(starts))
