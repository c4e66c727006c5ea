"""How much a client may send: a bucket of permits that fills at a steady rate."""

from __future__ import annotations

from app.runtime.clock import Clock


class TokenBucket:
    """`burst` permits at first, `rate` more per second, never above `burst`."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._permits = burst
        self._filled_at = clock()

    def take(self) -> bool:
        """Take one permit if there is one, and say whether there was."""
        now = self._clock()
        self._permits = min(self._burst, self._permits + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._permits < 1:
            return False
        self._permits -= 1
        return True
