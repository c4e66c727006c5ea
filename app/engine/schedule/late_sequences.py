"""What the scheduler asks about masks that are made beside it, so that it knows no grammar itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class LateSequences(Protocol):
    """The sequences that sit out the next step. Engine thread only; execute/worker_masks.py implements it."""

    def late(self) -> Collection[int]:
        """Return the ids of the sequences whose masks are not there yet, after a short wait for them."""

    def is_slow(self, sequence_id: int) -> bool:
        """Return whether a sequence's masks take so long that it should have no draft tokens."""

    def end(self, sequence_id: int) -> None:
        """Note that a sequence has ended; unknown ids are ignored."""
