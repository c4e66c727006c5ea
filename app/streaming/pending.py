"""What waits for all readers of one server, in bytes; above a limit, new work is refused until some of it is read."""

from __future__ import annotations

from app.errors import Overloaded


class PendingBytes:
    """A running sum, so that it costs nothing to look at; those that hold something keep it. Loop only.

    Attributes:
        num_bytes: the sum.
    """

    __slots__ = ("_limit", "num_bytes")

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.num_bytes = 0

    def check(self) -> None:
        """Refuse a new request while too much waits.

        Raises:
            Overloaded: more than the limit.
        """
        if self._limit is not None and self.num_bytes > self._limit:
            raise Overloaded(
                f"{self.num_bytes} bytes of answers wait for clients that do not read them; this server holds at most "
                f"{self._limit} (--max-pending-bytes). Try again later."
            )
