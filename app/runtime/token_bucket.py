"""A token bucket, which limits the rate of a client's messages."""

from __future__ import annotations

from app.runtime.clock import Clock


class TokenBucket:
    """Holds `burst` permits at first and gets `rate` per second, up to `burst`."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._permits = burst
        self._filled_at = clock()

    def take(self) -> bool:
        """Take one permit; return False if there is none."""
        now = self._clock()
        self._permits = min(self._burst, self._permits + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._permits < 1:
            return False
        self._permits -= 1
        return True
