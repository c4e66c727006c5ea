"""How many threads compute a step: chosen by measurement, again and again, while the engine runs.

More threads are faster on a quiet machine and many times slower on a busy one, where every parallel loop waits for the
thread that lost its core. Results do not depend on the choice (docs/architecture.md, "Equal bits in any company").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from app.clock import Clock, monotonic

# Steps between two looks at a candidate that was slower: this times how much slower it was.
PROBE_INTERVAL_STEPS = 50
_NEWEST_WEIGHT = 0.3


class ThreadChoice:
    """Keeps a running mean of the step time for each candidate and step size. Engine thread only."""

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
        self._means: dict[tuple[int, int], float] = {}
        self._next_probe: dict[tuple[int, int], int] = {}
        self._steps: dict[int, int] = {}

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        """Run the body, a step of `num_tokens`, with the best number of threads known, or with one worth a look."""
        size = num_tokens.bit_length()
        self._steps[size] = self._steps.get(size, 0) + 1
        chosen = self._choose(size)
        if chosen != self._current:
            self._set_threads(chosen)
            self._current = chosen
        started = self._clock()
        yield
        self._learn(size, chosen, self._clock() - started)

    def best(self, num_tokens: int) -> int:
        """Return the candidate with the lowest mean for steps of this size; unmeasured ones count as the best."""
        size = num_tokens.bit_length()
        return min(self.candidates, key=lambda threads: self._means.get((size, threads), 0.0))

    def _choose(self, size: int) -> int:
        for threads in self.candidates:
            if self._next_probe.get((size, threads), 0) <= self._steps[size]:
                return threads
        return min(self.candidates, key=lambda threads: self._means[size, threads])

    def _learn(self, size: int, threads: int, duration_s: float) -> None:
        old = self._means.get((size, threads), duration_s)
        self._means[size, threads] = mean = old + _NEWEST_WEIGHT * (duration_s - old)
        fastest = min(self._means.get((size, other), mean) for other in self.candidates)
        slowness = mean / fastest if fastest > 0 else 1.0
        self._next_probe[size, threads] = self._steps[size] + 1 + int(PROBE_INTERVAL_STEPS * slowness)
