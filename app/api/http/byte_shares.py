"""Memory for what is being received, which the clients of a server share: large bodies and messages, not yet complete.

A client may have as many bytes as all of them together leave free. So one alone gets half of all, a second one half of
the rest, and there is always some left for the next (dynamic thresholds: Choudhury and Hahne, 1998).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from app.api.http.body_buffer import SMALL_BYTES

MAX_BYTES = 2**28
NUM_LARGEST = 4
"""One client alone may always send two bodies of the largest size at once."""


class ByteShares:
    """Counts what clients have sent of up to `MAX_BYTES`, or NUM_LARGEST bodies of `largest` bytes. Loop only.

    `on_freed` is called where something of it is freed.

    Attributes:
        num_bytes: of all clients.
    """

    def __init__(self, largest: int, on_freed: Callable[[], None] = lambda: None) -> None:
        self.num_bytes = 0
        self._on_freed = on_freed
        self._max_bytes = max(MAX_BYTES, NUM_LARGEST * largest)
        self._taken: Counter[str] = Counter()

    def resize(self, account: str, before: int, after: int) -> bool:
        """Let something of an account have `after` bytes instead of `before`; return whether it may have them."""
        more = after - before
        if more > 0 and self._taken[account] + more > self._max_bytes - self.num_bytes - more:
            return False
        if before and not after:
            self._on_freed()
        self.num_bytes += more
        self._taken[account] += more
        if not self._taken[account]:
            del self._taken[account]
        return True


class Receiving:
    """One body or message of an account while it is received; a small one does not count. Loop only."""

    def __init__(self, shares: ByteShares, account: str) -> None:
        self._shares = shares
        self._account = account
        self._counted = 0

    def has(self, num_bytes: int) -> bool:
        """Note how many bytes it has, 0 at its end; return whether it may have them, else it has as many as before."""
        counted = num_bytes if num_bytes > SMALL_BYTES else 0
        may = self._shares.resize(self._account, self._counted, counted)
        if may:
            self._counted = counted
        return may
