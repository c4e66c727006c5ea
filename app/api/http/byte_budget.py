"""A number of bytes that all connections of a server share."""

from __future__ import annotations


class ByteBudget:
    """Counts up to `max_bytes`. Loop only.

    Attributes:
        num_bytes: how many are taken.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes

    def take(self, num_bytes: int) -> bool:
        """Take bytes if so many are left; return whether they were."""
        if self.num_bytes + num_bytes > self._max_bytes:
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Give back bytes that were taken."""
        self.num_bytes -= num_bytes
