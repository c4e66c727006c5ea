"""Detects that a value has not changed for a timeout, by polling it.

Only time during which the observer itself was running counts: the time between two observations counts as at most two
intervals. So a process that was stopped (SIGSTOP, a sleeping laptop) or got no CPU does not report stalls of others.
"""

from __future__ import annotations

MIN_OBSERVATIONS = 10
"""The least number of observations within a timeout."""


def look_interval(timeout_s: float, *others_s: float) -> float:
    """Return the seconds between observations: short enough for `timeout_s` (0: disabled) and for all `others_s`."""
    return min([*others_s, timeout_s / MIN_OBSERVATIONS] if timeout_s else others_s)


class StallDetector:
    """Detects that a stamp has not changed for `timeout_s`; it is observed every `interval_s` seconds."""

    def __init__(self, timeout_s: float, interval_s: float) -> None:
        self._timeout_s = timeout_s
        self._max_counted_s = 2 * interval_s
        self._stamp: object = None
        self._observed_at = 0.0
        self._unchanged_s = 0.0

    def observe(self, stamp: object, now: float) -> bool:
        """Return whether `stamp` has been the same for the timeout; None means that no change is expected.

        A timeout of 0 s disables the detection.
        """
        counted_s = min(now - self._observed_at, self._max_counted_s)
        self._observed_at = now
        if stamp is None or stamp != self._stamp:
            self._stamp, self._unchanged_s = stamp, 0.0
            return False
        self._unchanged_s += counted_s
        return 0 < self._timeout_s <= self._unchanged_s
