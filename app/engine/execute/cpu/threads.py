"""How many threads compute a step: all of them, unless fewer turn out to be faster.

The native kernels share their work out as they go (native/team.h), so that the number hardly matters to them. To torch
it does: beside other programs each of its loops waits for the thread that lost its core. Results do not depend on the
choice (docs/architecture.md, "Equal bits in any company").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from app.runtime.clock import Clock, monotonic

# Another number is looked at for one step after so long, then each time after twice as long, up to the most; from the
# beginning again when the choice changes. By time, for a step takes from 0.1 ms to seconds.
FIRST_LOOK_S, MOST_LOOK_S = 0.5, 10.0
# Fewer threads, which are slower on a quiet machine whatever it does, take at most this share of the time for looks.
_LOOK_SHARE = 0.02
# A look is held against the fastest of so many steps just before it, of as many tokens each: what else may make one
# step slower than another, its size, its place in a prompt or another program, is then mostly left out.
NUM_COMPARED = 4
# To be chosen, a look must take at most this share of what that one took.
ADVANTAGE = 0.9


class ThreadChoice:
    """Knows the steps just before, and when it is to look at the other candidates.

    Engine thread only. The start is with all threads, whatever the machine is doing just then.
    """

    def __init__(
        self,
        max_threads: int,
        *,
        set_threads: Callable[[int], None] = torch.set_num_threads,
        clock: Clock = monotonic,
    ) -> None:
        self.candidates = sorted({1, max(1, max_threads // 2), max_threads}, reverse=True)
        self._set_threads = set_threads
        self._clock = clock
        self._current = 0
        self._best = self.candidates[0]
        self._num_tokens = 0
        self._compared: deque[float] = deque(maxlen=NUM_COMPARED)  # seconds of the last steps, of `_num_tokens` each
        self._wait_s = dict.fromkeys(self.candidates, FIRST_LOOK_S)
        self._next_look: dict[int, float] = {}  # the first step sets it: loading may take long after this

    @property
    def best(self) -> int:
        """The candidate that was fastest of late."""
        return self._best

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        """Run the body, a step of `num_tokens`, with the best number of threads, or with one that is due for a look."""
        started = self._clock()
        if not self._next_look:
            self._look_again(started)
        if num_tokens != self._num_tokens:
            self._num_tokens = num_tokens
            self._compared.clear()
        threads = self._due(started) or self._best
        self._use(threads)
        yield
        now = self._clock()
        if threads == self._best:
            self._compared.append(now - started)
        elif now - started <= ADVANTAGE * min(self._compared):
            self._best = threads
            self._compared.clear()
            self._look_again(now)
        else:
            self._wait_s[threads] = wait_s = min(2 * self._wait_s[threads], MOST_LOOK_S)
            least_s = (now - started) / _LOOK_SHARE if threads < self._best else 0.0
            self._next_look[threads] = now + max(wait_s, least_s)

    def _due(self, now: float) -> int | None:
        """Return a candidate whose look is due, if there is something to hold it against."""
        if len(self._compared) < NUM_COMPARED:
            return None
        return next((threads for threads, at in self._next_look.items() if at <= now and threads != self._best), None)

    def _look_again(self, now: float) -> None:
        """Look at all others soon."""
        self._wait_s = dict.fromkeys(self.candidates, FIRST_LOOK_S)
        self._next_look = dict.fromkeys(self.candidates, now + FIRST_LOOK_S)

    def _use(self, threads: int) -> None:
        if threads != self._current:
            self._set_threads(threads)
            self._current = threads
