"""Brown-out: under sustained pressure the server limits the work for each request, and recovers by itself.

Pressure is how long the next request has waited: users notice this wait, its measure does not depend on the model's
speed, and a burst that drains in time does not raise the level. Hysteresis keeps the level from flapping: the level
rises one step when pressure has stayed above the next level's threshold for `RISE_S`, and falls one step when pressure
has stayed below half of its own threshold for `FALL_S`. In between nothing changes.
"""

from __future__ import annotations

import logging

from app.contract.brownout_effects import MAX_LEVEL, SHEDDING_S, effects

# Seconds of waiting for level 1, 2, 3. A first token after 5 s comes too late for most readers; at 30 s most users and
# many proxies have disconnected, so work accepted beyond that is wasted.
WAITS_S = (5.0, 15.0, 30.0)
# Sustained: longer than one long step or a pause of the collector; the waits above are most of the delay anyway.
RISE_S = 2.0
# Longer than RISE_S, so that oscillating pressure ends at the higher level; short against the waits, so that a server
# that sheds takes new work again before its queue is empty.
FALL_S = float(SHEDDING_S)
# From this KV usage on the next block comes from a request that ends or is preempted, so waits will grow.
FULL_KV = 0.95
_FULL_FACTOR = 2.0
# The effect of each level, for the log (`app/contract/brownout_effects.py` has the figures).
_EFFECTS = ("prompts get less of each step", "max_tokens is smaller where none is given", "new requests are rejected")


class Brownout:
    """The current level, 0 (no limits) to 3 (new requests are rejected). Engine thread only; pure."""

    def __init__(self) -> None:
        self.level = 0
        self._above_since: float | None = None
        self._below_since: float | None = None
        self._has_risen = False

    @property
    def chunk_scale(self) -> float:
        """The share of the target step time that prefill chunks may fill."""
        return effects(self.level).chunk_scale

    def update(self, now: float, num_waiting: int, wait_s: float, kv_usage: float) -> bool:
        """Update the level from the state at `now`; return whether it changed (by one).

        `num_waiting` counts the requests that could start; `kv_usage` is the share of blocks in use, 0..1. While
        `level` is above 0 the caller must update about once a second even without work, or the level does not fall.
        """
        pressure = _pressure(num_waiting, wait_s, kv_usage)
        is_above = self.level < MAX_LEVEL and pressure > WAITS_S[self.level]
        is_below = self.level > 0 and pressure < WAITS_S[self.level - 1] / 2
        self._above_since = _held_since(self._above_since, is_above, now)
        self._below_since = _held_since(self._below_since, is_below, now)
        if self._above_since is not None and now - self._above_since >= RISE_S:
            self._move(self.level + 1)
        elif self._below_since is not None and now - self._below_since >= FALL_S:
            self._move(self.level - 1)
        else:
            return False
        return True

    def describe_change(self, wait_s: float) -> tuple[int, str]:
        """Return a `logging` level and a sentence for the log about the new brown-out level.

        `wait_s` is how long the next request has waited, in seconds.
        """
        if not self.level:
            return logging.INFO, "The brown-out is over: no limits apply any more."
        if not self._has_risen:
            return logging.INFO, f"The brown-out is down to level {self.level} of {MAX_LEVEL}."
        effect = _EFFECTS[self.level - 1]
        return logging.WARNING, (
            f"The next request has waited for {wait_s:.1f} s: the brown-out is at level {self.level} of "
            f"{MAX_LEVEL}, {effect}."
        )

    def _move(self, level: int) -> None:
        self._has_risen = level > self.level
        self.level = level
        self._above_since = self._below_since = None


def _pressure(num_waiting: int, wait_s: float, kv_usage: float) -> float:
    if num_waiting == 0:
        return 0.0
    return wait_s * (_FULL_FACTOR if kv_usage >= FULL_KV else 1.0)


def _held_since(since: float | None, is_true: bool, now: float) -> float | None:
    """Return since when a condition has held without a break; None while it does not hold."""
    if not is_true:
        return None
    return now if since is None else since
