"""Token buckets, which limit the rate of what clients do."""

from __future__ import annotations

import threading
from collections import defaultdict

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
        self._fill()
        if self._permits < 1:
            return False
        self._permits -= 1
        return True

    @property
    def seconds_left(self) -> float:
        """The seconds until there is a permit; 0 where there is one."""
        self._fill()
        return max(0.0, 1 - self._permits) / self._rate

    @property
    def is_full(self) -> bool:
        """Whether the bucket is as it was at first."""
        self._fill()
        return self._permits >= self._burst

    def _fill(self) -> None:
        now = self._clock()
        self._permits = min(self._burst, self._permits + (now - self._filled_at) * self._rate)
        self._filled_at = now


class TokenBuckets:
    """A bucket for each account that has taken permits lately; full ones are dropped. Any thread."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._buckets: defaultdict[str, TokenBucket] = defaultdict(lambda: TokenBucket(rate, burst, clock))

    def take(self, account: str) -> bool:
        """Take one of the account's permits; return False if there is none."""
        with self._lock:
            for other in [name for name, bucket in self._buckets.items() if bucket.is_full]:
                del self._buckets[other]
            return self._buckets[account].take()

    def seconds_left(self, account: str) -> float:
        """Return the seconds until the account has a permit; 0 where it has one."""
        with self._lock:
            bucket = self._buckets.get(account)
            return 0.0 if bucket is None else bucket.seconds_left
