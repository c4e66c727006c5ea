"""What the scheduler asks about masks that are made beside it, so that it knows no grammar itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from app.engine.schedule.row_sampling import RowSampling


class LateSequences(Protocol):
    """The sequences with grammars, which may wait for their masks. Engine thread only; see execute/worker_masks.py."""

    def late(self) -> Collection[int]:
        """Return the ids of the sequences whose masks are not there, after a short wait; they sit the step out."""

    def prepare(self, sequence_id: int, sampling: RowSampling, token_ids: Sequence[int], *, is_next: bool) -> None:
        """Have the mask of a sequence without a row made, unless it is, while there is room; first if it `is_next`.

        `token_ids` are those of its answer so far. Does not wait for the mask.
        """

    def has_mask(self, sequence_id: int, num_tokens: int) -> bool:
        """Return whether the mask behind the `num_tokens` tokens of a sequence is there, or none will be."""

    def is_slow(self, sequence_id: int) -> bool:
        """Return whether a sequence's masks take so long that it should have no draft tokens."""

    def end(self, sequence_id: int) -> None:
        """Note that a sequence has ended; unknown ids are ignored."""
