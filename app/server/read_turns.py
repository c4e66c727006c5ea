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
MESSAGE_S = 2e-9
"""Seconds that the application needs for a byte of a message, at most: 4 MB of empty lists take 7 ms."""


class ReadTurns:
    """Lets the sockets of a server together parse for at most TURN_S of each PERIOD_S, and one step more.

    Clients take turns, and the sockets of each among themselves: nobody waits longer because another one has many.

    One read has up to 256 KiB, which are 40,000 frames of a hostile client: parsed at once, they would keep the loop
    from all others for 0.2 s, and those of many sockets for as many times longer. What the application then needs for
    the messages counts, too: in rotation those of many sockets are complete at nearly the same time. Event loop only.

    A step may be called in another socket's turn, so it must not raise. `clock` is the loop's processor time.
    """

    def __init__(self, clock: Clock = thread_time) -> None:
        self._clock = clock
        self._waiting: dict[str, deque[Callable[[], bool]]] = {}  # by client, the next one first
        self._left_s = TURN_S
        self._owed_s = 0.0
        self._has_begun = False  # this period, whose end is scheduled

    def take(self, client: str, step: Callable[[], bool]) -> None:
        """Call `step` until it returns False: at once, as far as this period has time, else in the next ones."""
        self._waiting.setdefault(client, deque()).append(step)
        self._spend()

    def owe(self, num_bytes: int) -> None:
        """Let this period and the next ones do less: the application gets a message of so many bytes."""
        self._owed_s += num_bytes * MESSAGE_S

    def _spend(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            asyncio.get_running_loop().call_later(PERIOD_S, self._end_period)
        while self._waiting and self._left_s > self._owed_s:
            client, steps = next(iter(self._waiting.items()))
            del self._waiting[client]
            step, began = steps.popleft(), self._clock()
            goes_on = step()
            while goes_on and self._clock() - began < STEPS_S:
                goes_on = step()
            if goes_on:
                steps.append(step)
            if steps:
                self._waiting.setdefault(client, deque()).extend(steps)
            self._left_s -= self._clock() - began

    def _end_period(self) -> None:
        self._has_begun = False
        self._owed_s = max(0.0, self._owed_s - max(0.0, self._left_s))
        self._left_s = TURN_S
        if self._waiting or self._owed_s:
            self._spend()
