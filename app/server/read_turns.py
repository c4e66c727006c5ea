"""Bounds what all sockets of a server together take of the event loop to parse what they have received."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from app.runtime.clock import Clock, thread_time

PERIOD_S = 0.010
TURN_S = 0.004
"""Seconds of each PERIOD_S for the parsing of all sockets together: some 250 reads of small messages."""
STEPS_S = 0.0005
"""Seconds of a socket's steps until it is another one's turn: a part of a long message is parsed in microseconds, and
would else wait for a rotation of those whose steps take a hundred times longer.
"""


class ReadTurns:
    """Lets the sockets of a server together parse for at most TURN_S of each PERIOD_S, and one step more, in rotation.

    One read has up to 256 KiB, which are 40,000 frames of a hostile client: parsed at once, they would keep the loop
    from all others for 0.2 s, and those of many sockets for as many times longer. Event loop only.

    A step may be called in another socket's turn, so it must not raise. `clock` is the loop's processor time.
    """

    def __init__(self, clock: Clock = thread_time) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], bool]] = deque()
        self._left_s = TURN_S
        self._has_begun = False  # this period, whose end is scheduled

    def take(self, step: Callable[[], bool]) -> None:
        """Call `step` until it returns False: at once, as far as this period has time, else in the next ones."""
        self._waiting.append(step)
        self._spend()

    def _spend(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            asyncio.get_running_loop().call_later(PERIOD_S, self._end_period)
        while self._waiting and self._left_s > 0:
            step, began = self._waiting.popleft(), self._clock()
            goes_on = step()
            while goes_on and self._clock() - began < STEPS_S:
                goes_on = step()
            if goes_on:
                self._waiting.append(step)
            self._left_s -= self._clock() - began

    def _end_period(self) -> None:
        self._has_begun = False
        self._left_s = TURN_S
        if self._waiting:
            self._spend()
