"""How many threads compute a step: measured at the start, and again and again while the engine runs.

More threads are faster on a quiet machine and many times slower on a busy one, where every parallel loop waits for the
thread that lost its core. Results do not depend on the choice (docs/architecture.md, "Equal bits in any company").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from app.clock import Clock, monotonic

# A candidate is tried again after this many steps, times how much slower than the best it was.
PROBE_INTERVAL_STEPS = 50
# A large step, of which a look costs most, leaves it to a small one for so many steps more.
_SMALL_STEP, _PATIENCE_STEPS = 64, 500
# A step can be slow by accident, never fast: good news counts more than bad news. And a step counts
# as at most twice as slow as those before it: one hiccup must not make the choice for the next hundred; three do.
_GOOD_NEWS, _BAD_NEWS, _MOST_NEWS = 0.8, 0.3, 2.0
_PROBE_SIZE = 384
_PROBE_PRODUCTS = 4
_PROBES = 3


class ThreadChoice:
    """Keeps, for each candidate, mean step times by step size and how much slower than the best it was of late.

    Engine thread only. `probe` times a fixed piece of work with the threads that are set.
    """

    def __init__(
        self,
        max_threads: int,
        *,
        set_threads: Callable[[int], None] = torch.set_num_threads,
        probe: Callable[[], None] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.candidates = sorted({1, max(1, max_threads // 2), max_threads}, reverse=True)
        self._set_threads = set_threads
        self._clock = clock
        self._current = 0
        self._num_steps = 0
        self._means: dict[tuple[int, int], float] = {}
        self._slowness = self._measure_at_start(probe or _multiply)
        self._next_probe = {threads: self._probe_after(threads) for threads in self.candidates}

    @property
    def best(self) -> int:
        """The candidate that was fastest of late; the larger one of equals."""
        return min(self.candidates, key=lambda threads: self._slowness[threads])

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        """Run the body, a step of `num_tokens`, with the best number of threads, or with one that is due for a look."""
        self._num_steps += 1
        overdue_since = self._num_steps - (0 if num_tokens <= _SMALL_STEP else _PATIENCE_STEPS)
        due = [threads for threads in self.candidates if self._next_probe[threads] <= overdue_since]
        threads = due[0] if due else self.best
        self._use(threads)
        started = self._clock()
        yield
        self._learn(num_tokens.bit_length(), threads, self._clock() - started)

    def _measure_at_start(self, probe: Callable[[], None]) -> dict[int, float]:
        times = {}
        for threads in self.candidates:
            self._use(threads)
            probe()  # the first use of a thread count starts its threads
            times[threads] = min(self._time(probe) for _ in range(_PROBES))
        fastest = min(times.values())
        return {threads: time / fastest if fastest > 0 else 1.0 for threads, time in times.items()}

    def _time(self, probe: Callable[[], None]) -> float:
        started = self._clock()
        probe()
        return self._clock() - started

    def _learn(self, size: int, threads: int, duration_s: float) -> None:
        old = self._means.get((size, threads), duration_s)
        news = min(duration_s, _MOST_NEWS * old)
        self._means[size, threads] = mean = old + (_GOOD_NEWS if news < old else _BAD_NEWS) * (news - old)
        others = [self._means[size, other] for other in self.candidates if (size, other) in self._means]
        if len(others) > 1 and min(others) > 0:
            self._slowness[threads] = mean / min(others)
        self._next_probe[threads] = self._probe_after(threads)

    def _probe_after(self, threads: int) -> int:
        return self._num_steps + int(PROBE_INTERVAL_STEPS * self._slowness[threads])

    def _use(self, threads: int) -> None:
        if threads != self._current:
            self._set_threads(threads)
            self._current = threads


def _multiply() -> None:
    square = torch.ones(_PROBE_SIZE, _PROBE_SIZE)
    for _ in range(_PROBE_PRODUCTS):
        torch.mm(square, square)
