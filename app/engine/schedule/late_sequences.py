"""What the scheduler asks about masks that are made beside it, so that it knows no grammar itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from app.contract.grammar import Grammar


class LateSequences(Protocol):
    """The sequences that sit out the next step. Engine thread only; execute/worker_masks.py implements it."""

    def late(self) -> Collection[Grammar]:
        """Return the grammars that some mask is late of, after a short wait; all their sequences sit the step out."""

    def is_slow(self, sequence_id: int) -> bool:
        """Return whether a sequence's masks take so long that it should have no draft tokens."""

    def end(self, sequence_id: int) -> None:
        """Note that a sequence has ended; unknown ids are ignored."""
