"""How much a client of quire.v1 lets itself be sent."""

from __future__ import annotations

from collections.abc import Sequence


class Credit:
    """The number of the last token of each choice that may be sent. Loop only.

    It is cumulative: numbers never fall, so grants may be lost, doubled or out of order. `first` is the number of a
    choice that no grant has raised.

    Attributes:
        num_raises: how many grants have raised a number.
    """

    __slots__ = ("_first", "_upto", "num_raises")

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._upto: dict[int, int] = {}
        self.num_raises = 0

    def upto(self, choice: int) -> int:
        """Return the number of the last token of `choice` that may be sent."""
        return self._upto.get(choice, self._first)

    def grant(self, upto: Sequence[int]) -> None:
        """Let choice i be sent up to its token `upto[i]`; of choices left out nothing changes."""
        raised = {choice: number for choice, number in enumerate(upto) if number > self.upto(choice)}
        self._upto.update(raised)
        self.num_raises += bool(raised)
