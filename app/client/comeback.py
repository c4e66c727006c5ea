"""When a client connects again after its connection was lost, and how long it waits before that."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Comeback(StrEnum):
    """The next step of a client whose connection was lost."""

    NEVER = "never"  # the next connection would end in the same way
    SOON = "soon"
    LATER = "later"  # the server has got too much: not before the longest delay
    WHEN_READ = "when read"  # nobody read what was received: as soon as a reader waits


_COMEBACKS = {
    1001: Comeback.SOON,  # a proxy that stops
    1005: Comeback.SOON,  # so does one that says nothing
    1006: Comeback.SOON,
    1011: Comeback.SOON,
    1012: Comeback.SOON,
    1013: Comeback.SOON,
    1014: Comeback.SOON,
    4408: Comeback.SOON,
    4429: Comeback.LATER,
    4499: Comeback.WHEN_READ,
    4503: Comeback.SOON,
}
_TOO_MANY_REQUESTS = 429


def comeback_after(close_code: int) -> Comeback:
    """Return the next step after a close code; `NEVER` after those that the client has caused, and unknown ones."""
    return _COMEBACKS.get(close_code, Comeback.NEVER)


def comeback_after_status(status: int) -> Comeback:
    """Return the next step after a rejected handshake, by its HTTP status: the server, or a proxy, may be busy."""
    if status == _TOO_MANY_REQUESTS:
        return Comeback.LATER
    return Comeback.SOON if status >= 500 else Comeback.NEVER


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts, with full jitter: clients that lost the same server do not come back together.

    Attributes:
        first_s, last_s: the bounds of the first delay, and of all delays.
        give_up_s: how long it is tried without a welcome.
    """

    first_s: float = 0.5
    last_s: float = 8.0
    give_up_s: float = 60.0

    def delay(self, num_attempts: int, comeback: Comeback) -> float:
        """Return the seconds to wait before the next attempt, after so many in vain."""
        if comeback is Comeback.LATER:
            return self.last_s * (1 + random.random())
        return random.uniform(0, min(self.last_s, self.first_s * 2**num_attempts))
