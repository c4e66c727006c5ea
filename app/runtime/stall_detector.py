"""How long something has stood still, measured by one who looks at it now and then.

Only the time during which the one who looks was awake himself counts: each look counts for two intervals at most,
however long ago the one before was. So nobody who was stopped (SIGSTOP, a laptop asleep) or got no CPU for a while
takes the others for ones that hang.
"""

from __future__ import annotations

LOOKS = 10
"""How often one who waits for a timeout should look, at least."""


def look_interval(timeout_s: float, *others_s: float) -> float:
    """Return the seconds between two looks: often enough for `timeout_s` (0: never over) and for all `others_s`."""
    return min([*others_s, timeout_s / LOOKS] if timeout_s else others_s)


class StallDetector:
    """How long something has not changed, in the eyes of one who looks at it every `interval_s` seconds."""

    def __init__(self, timeout_s: float, interval_s: float) -> None:
        self._timeout_s = timeout_s
        self._longest_look_s = 2 * interval_s
        self._stamp: object = None
        self._looked_at = 0.0
        self._still_s = 0.0

    def observe(self, stamp: object, now: float) -> bool:
        """Say whether `stamp` has been the same for the timeout; None means that nothing needs to change.

        A timeout of 0 s is never over.
        """
        seen_s = min(now - self._looked_at, self._longest_look_s)
        self._looked_at = now
        if stamp is None or stamp != self._stamp:
            self._stamp, self._still_s = stamp, 0.0
            return False
        self._still_s += seen_s
        return 0 < self._timeout_s <= self._still_s
