"""The shapes of steps: how many rows, rounded up so that few graphs serve all steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from app.kernels.ops import pad_rows

# A step of one token per sequence reads all weights anyway: below about 180 rows padding costs almost nothing.
_DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_DECODES_APART = 64  # beyond
# Above that a padding row costs as much as a real one, so the sizes lie closer.
_MIXED = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
"""Larger steps take so long that calling each operation from Python costs nothing; they have no graphs."""


class StepShape(NamedTuple):
    """How many rows a step has, padding included; in a decode step each row is a sequence and samples a token."""

    num_rows: int
    num_draws: int
    is_decode: bool


class StepShapes:
    """The shapes of an engine that runs `max_seqs` sequences, in steps of `max_tokens` with `max_draws` logit rows."""

    def __init__(self, max_seqs: int, max_tokens: int, max_draws: int) -> None:
        self._decodes = _up_to(max_seqs, (*_DECODES, *range(256 + _DECODES_APART, max_seqs, _DECODES_APART)))
        self._mixed = _up_to(min(pad_rows(max_tokens), _MIXED[-1]), _MIXED)
        self._max_draws = pad_rows(max_draws)

    def decode(self, num_rows: int) -> StepShape:
        """Return the shape for a step in which so many sequences compute and sample one token each."""
        bucket = self._decodes[bisect_left(self._decodes, num_rows)]
        return StepShape(bucket, bucket, True)

    def mixed(self, num_rows: int) -> StepShape:
        """Return the shape for a step over so many tokens."""
        place = bisect_left(self._mixed, num_rows)
        bucket = self._mixed[place] if place < len(self._mixed) else pad_rows(num_rows)
        return StepShape(bucket, min(bucket, self._max_draws), False)

    def of_each_kind(self) -> tuple[StepShape, StepShape]:
        """Return a small shape with prompts and one without."""
        return self.mixed(1), self.decode(1)

    def all(self) -> list[StepShape]:
        """Return the shapes worth a graph, the largest first: the others reuse its memory."""
        shapes = [self.mixed(count) for count in self._mixed] + [self.decode(count) for count in self._decodes]
        return sorted(shapes, reverse=True)


def _up_to(largest: int, sizes: Iterable[int]) -> list[int]:
    """Return the sizes below `largest`, and `largest`."""
    return [*(size for size in sizes if size < largest), largest]
