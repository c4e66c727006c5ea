"""The choices of one request that have not ended, as what receives its events counts them."""

from __future__ import annotations

from collections.abc import Iterable


class OpenChoices:
    """Implements what an `EventSink` says of a request. Loop only.

    Attributes:
        has_begun: whether a token or a final event was received.
    """

    __slots__ = ("_open", "has_begun")

    def __init__(self, choices: Iterable[int]) -> None:
        self._open = set(choices)
        self.has_begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the request has ended."""
        return not self._open

    @property
    def num_open_choices(self) -> int:
        """The number of choices that have not ended."""
        return len(self._open)

    def _begin(self, choice: int) -> bool:
        """Note an event of a choice; return whether the choice is open."""
        if choice not in self._open:
            return False
        self.has_begun = True
        return True

    def _end(self, choice: int) -> None:
        """Note that a choice has ended."""
        self._open.remove(choice)

    def _end_all(self) -> None:
        """Note that the request has ended."""
        self._open.clear()
