"""The shapes of steps: how many rows, rounded up so that few graphs serve all steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from app.kernels.ops import pad_rows
from app.kernels.triton.attention.grids import AttentionGrids

# A step of one token per sequence reads all weights anyway: below about 180 rows padding costs almost nothing.
_DECODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_DECODE_STEP = 64  # the distance of larger sizes
# Above that a padding row costs as much as a real one: from 512 rows on, padding is a fifth of a step at most.
# Larger steps take so long that calling each operation from Python costs nothing; they have no graphs.
_MIXED = (64, *range(128, 1024, 128), *range(1024, 2049, 256))


class StepShape(NamedTuple):
    """How many rows a step has, padding included; in a decode step each row is a sequence and samples a token.

    `num_splits`: among how many programs attention shares out the context of each row of a decode step, and in a mixed
    step those of all rows that decode.
    """

    num_rows: int
    num_logit_rows: int
    is_decode: bool
    num_splits: int = 1


class StepShapes:
    """The shapes of steps of at most `max_tokens` tokens and `max_logit_rows` samples, of `max_seqs` sequences.

    Contexts are at most `max_context` tokens long; `grids` decides how attention is shared out.
    """

    def __init__(
        self, max_seqs: int, max_tokens: int, max_logit_rows: int, max_context: int, grids: AttentionGrids
    ) -> None:
        self._decodes = _up_to(max_seqs, (*_DECODES, *range(256 + _DECODE_STEP, max_seqs, _DECODE_STEP)))
        self._mixed = _up_to(min(pad_rows(max_tokens), _MIXED[-1]), _MIXED)
        self._max_tokens, self._max_logit_rows = max_tokens, pad_rows(max_logit_rows)
        self._max_context, self._grids = max_context, grids

    def decode(self, num_rows: int, longest: int) -> StepShape:
        """Return the shape for a step in which so many sequences compute and sample one token each.

        `longest` is the number of tokens that the longest of them sees.
        """
        size = self._decodes[bisect_left(self._decodes, num_rows)]
        return StepShape(size, size, True, self._grids.decode_splits(size, longest))

    def mixed_rows(self, num_rows: int) -> int:
        """Return the rows, padding included, of a step over so many tokens."""
        index = bisect_left(self._mixed, num_rows)
        return self._mixed[index] if index < len(self._mixed) else pad_rows(num_rows)

    def mixed(self, num_rows: int, num_splits: int) -> StepShape:
        """Return the shape for a step over so many tokens; `num_splits` is one of the grids' `mixed_programs`."""
        size = self.mixed_rows(num_rows)
        return StepShape(size, min(size, self._max_logit_rows), False, num_splits)

    def all(self) -> list[StepShape]:
        """Return the shapes worth a graph, the largest first: the others reuse its memory."""
        programs = sorted(set(self._grids.mixed_programs))
        mixed = [self.mixed(size, num_splits) for size in self._mixed for num_splits in programs]
        decodes = [
            StepShape(size, size, True, num_splits)
            for size in self._decodes
            for num_splits in self._grids.all_decode_splits(size, self._max_context)
        ]
        return sorted([*mixed, *decodes], reverse=True)

    def warm_ups(self) -> list[StepShape]:
        """Return the shapes that together launch every specialization of every kernel, the largest first.

        Above the shapes with a graph a step has any multiple of eight rows: the largest stands for those.
        """
        return sorted({*self.all(), self.mixed(self._max_tokens, self._grids.mixed_programs[-1])}, reverse=True)


def _up_to(largest: int, sizes: Iterable[int]) -> list[int]:
    """Return the sizes below `largest`, and `largest`."""
    return [*(size for size in sizes if size < largest), largest]
