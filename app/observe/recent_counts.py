"""What has grown lately: samples of counters, one a second at most while the engine works, kept for a minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from app.runtime.clock import Clock, monotonic

INTERVAL_S = 1.0
KEPT_S = 60.0


class Sample(NamedTuple):
    """The counters that rates and percentiles are made of; those of times by bucket."""

    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_queries: int = 0
    num_hits: int = 0
    num_steps: int = 0
    steps_s: float = 0.0
    num_over_target: int = 0
    first_token: tuple[int, ...] = ()
    between_tokens: tuple[int, ...] = ()


class Window(NamedTuple):
    """The counters at the beginning of a window of time, and the seconds since then."""

    begin: Sample
    elapsed_s: float


class _Taken(NamedTuple):
    """A sample, and the time for which it is right: from the last report before it was taken."""

    since: float
    time: float
    sample: Sample


class RecentCounts:
    """Takes samples with `read`. Loop only."""

    def __init__(self, read: Callable[[], Sample], clock: Clock = monotonic) -> None:
        self._read = read
        self._clock = clock
        self._began = self._last_report = clock()
        self._taken: deque[_Taken] = deque()

    def before_report(self) -> None:
        """Take a sample if one is due; call it before a report changes the counters."""
        now = self._clock()
        if not self._taken or now >= self._taken[-1].time + INTERVAL_S:
            self._taken.append(_Taken(self._last_report, now, self._read()))
            while len(self._taken) > 1 and self._taken[1].time < now - KEPT_S:
                self._taken.popleft()
        self._last_report = now

    def window(self, seconds: float) -> Window:
        """Return how it was so many seconds ago, or up to one more while the engine works; at most a minute.

        Of a younger server it is how it was at the start.
        """
        now = self._clock()
        start = max(now - seconds, self._began)
        before: _Taken | None = None
        for taken in (*self._taken, _Taken(self._last_report, now, self._read())):
            if taken.time >= start:
                if taken.since <= start or before is None:
                    return Window(taken.sample, now - start)
                break
            before = taken
        assert before is not None, "the last sample is of now"
        return Window(before.sample, now - before.time)
