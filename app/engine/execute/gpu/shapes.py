"""The shapes of steps: how many rows, rounded up so that few graphs serve all steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from app.kernels.ops import pad_rows

# A step of one token per sequence reads all weights anyway: below about 180 rows padding costs almost nothing.
_DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_DECODE_STEP = 64  # the distance of larger sizes
# Above that a padding row costs as much as a real one, so the sizes lie closer.
# Larger steps take so long that calling each operation from Python costs nothing; they have no graphs.
_MIXED = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048)


class StepShape(NamedTuple):
    """How many rows a step has, padding included; in a decode step each row is a sequence and samples a token."""

    num_rows: int
    num_logit_rows: int
    is_decode: bool


class StepShapes:
    """The shapes of steps of at most `max_tokens` tokens and `max_logit_rows` samples, of `max_seqs` sequences."""

    def __init__(self, max_seqs: int, max_tokens: int, max_logit_rows: int) -> None:
        self._decodes = _up_to(max_seqs, (*_DECODES, *range(256 + _DECODE_STEP, max_seqs, _DECODE_STEP)))
        self._mixed = _up_to(min(pad_rows(max_tokens), _MIXED[-1]), _MIXED)
        self._max_tokens, self._max_logit_rows = max_tokens, pad_rows(max_logit_rows)

    def decode(self, num_rows: int) -> StepShape:
        """Return the shape for a step in which so many sequences compute and sample one token each."""
        size = self._decodes[bisect_left(self._decodes, num_rows)]
        return StepShape(size, size, True)

    def mixed(self, num_rows: int) -> StepShape:
        """Return the shape for a step over so many tokens."""
        index = bisect_left(self._mixed, num_rows)
        size = self._mixed[index] if index < len(self._mixed) else pad_rows(num_rows)
        return StepShape(size, min(size, self._max_logit_rows), False)

    def all(self) -> list[StepShape]:
        """Return the shapes worth a graph, the largest first: the others reuse its memory."""
        return sorted([*map(self.mixed, self._mixed), *map(self.decode, self._decodes)], reverse=True)

    def warm_ups(self) -> list[StepShape]:
        """Return the shapes that together launch every specialization of every kernel, the largest first.

        Above the shapes with a graph a step has any multiple of eight rows: the largest stands for those.
        """
        return sorted({*self.all(), self.mixed(self._max_tokens)}, reverse=True)


def _up_to(largest: int, sizes: Iterable[int]) -> list[int]:
    """Return the sizes below `largest`, and `largest`."""
    return [*(size for size in sizes if size < largest), largest]
