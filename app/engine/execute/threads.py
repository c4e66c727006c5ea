"""How many threads compute a step: all of them, unless fewer turn out to be faster.

The native kernels share their work out as they go (native/team.h), so that the number hardly matters to them. To torch
it does: beside other programs each of its loops waits for the thread that lost its core. Results do not depend on the
choice (docs/architecture.md, "Equal bits in any company").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from app.clock import Clock, monotonic

# Another number is looked at for one step after so long, then each time after twice as long, up to the most; from the
# beginning again when the choice changes. By time, for a step takes from 0.1 ms to seconds.
FIRST_LOOK_S, MOST_LOOK_S = 0.5, 10.0
# Fewer threads, which are slower on a quiet machine whatever it does, take at most this share of the time for looks.
_LOOK_SHARE = 0.02
# A large step, of which a look costs most, leaves it to a small one for so much longer.
_SMALL_STEP, PATIENCE_S = 64, 5.0
# A step can be slow by accident, never fast: good news counts in full, bad news in part. And a step counts as at most
# twice as slow as those before it: one hiccup must not make the choice for the next seconds; three do.
_BAD_NEWS, _MOST_NEWS = 0.3, 2.0


class ThreadChoice:
    """Keeps, for each candidate, mean step times by step size and how much slower than the best it was of late.

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
        self._means: dict[tuple[int, int], float] = {}
        self._slowness = dict.fromkeys(self.candidates, 1.0)
        self._wait_s = dict.fromkeys(self.candidates, FIRST_LOOK_S)
        self._next_look: dict[int, float] = {}  # the first step sets it: loading may take long after this

    @property
    def best(self) -> int:
        """The candidate that was fastest of late; the larger one of equals."""
        return self._best

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        """Run the body, a step of `num_tokens`, with the best number of threads, or with one that is due for a look."""
        started = self._clock()
        if not self._next_look:
            self._look_again(started)
        threads = self._due(started - (0 if num_tokens <= _SMALL_STEP else PATIENCE_S)) or self._best
        self._use(threads)
        yield
        now = self._clock()
        self._learn(num_tokens.bit_length(), threads, now - started)
        if threads != self._best:
            self._wait_s[threads] = wait_s = min(2 * self._wait_s[threads], MOST_LOOK_S)
            least_s = (now - started) / _LOOK_SHARE if threads < self._best else 0.0
            self._next_look[threads] = now + max(wait_s, least_s)
        self._choose(now)

    def _due(self, since: float) -> int | None:
        """Return a candidate whose look has been due since then."""
        return next((threads for threads, at in self._next_look.items() if at <= since and threads != self._best), None)

    def _learn(self, size: int, threads: int, duration_s: float) -> None:
        old = self._means.get((size, threads), duration_s)
        news = min(duration_s, _MOST_NEWS * old)
        self._means[size, threads] = mean = news if news < old else old + _BAD_NEWS * (news - old)
        others = [self._means[size, other] for other in self.candidates if (size, other) in self._means]
        if len(others) > 1 and min(others) > 0:
            self._slowness[threads] = mean / min(others)

    def _choose(self, now: float) -> None:
        best = min(self.candidates, key=lambda threads: self._slowness[threads])
        if best != self._best:
            self._best = best
            self._look_again(now)

    def _look_again(self, now: float) -> None:
        """Look at all others soon."""
        self._wait_s = dict.fromkeys(self.candidates, FIRST_LOOK_S)
        self._next_look = dict.fromkeys(self.candidates, now + FIRST_LOOK_S)

    def _use(self, threads: int) -> None:
        if threads != self._current:
            self._set_threads(threads)
            self._current = threads
