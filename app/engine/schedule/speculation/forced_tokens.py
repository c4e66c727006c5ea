"""What speculation asks about the grammars of running sequences, so that the scheduler knows no grammar itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

MAX_FORCED = 16
"""The most forced tokens of a sequence in one step: the step takes longer for the other sequences, too."""


class ForcedTokens(Protocol):
    """The tokens that grammars leave no choice about. Engine thread only; see execute/masks.py."""

    @property
    def rows(self) -> Collection[int]:
        """The state rows whose next tokens may be forced."""

    def forced(self, row: int) -> Sequence[int]:
        """Return the tokens that must follow those that the sequence in a state row has; empty if it has a choice.

        Only for rows of `rows` whose sequence has been part of a step, with no step in flight.
        """
