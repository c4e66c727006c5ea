"""How many threads compute a step: all of them, unless fewer are measured to be faster.

The native kernels distribute work dynamically (native/team.h), so the number hardly matters to them. For torch the
number matters: beside other programs each of its loops waits for the thread that lost its core. Results do not depend
on the choice (docs/design/cpu.md, "Batch invariance").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from app.runtime.clock import Clock, monotonic

# Another number is tried for one step after so many seconds, then each time after twice as long, up to the maximum;
# from the minimum again when the choice changes. Seconds, not steps, because a step takes from 0.1 ms to seconds.
MIN_WAIT_S, MAX_WAIT_S = 0.5, 10.0
# Fewer threads are slower on an idle machine, so their trials take at most this share of the time.
_MAX_TRIAL_SHARE = 0.02
# A trial is compared with the fastest of so many steps just before it, of as many tokens each: this mostly excludes
# other causes of slower steps, such as their size, their position in a prompt or another program.
NUM_COMPARED = 4
# To be chosen, a trial must take at most this share of the time of that step.
ADVANTAGE = 0.9


class ThreadChoice:
    """Measures steps, and tries the other candidates from time to time.

    Engine thread only. The first choice is all threads, whatever the load of the machine.
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
        self.best = self.candidates[0]  # the candidate that was fastest recently
        self._num_tokens = 0
        self._compared: deque[float] = deque(maxlen=NUM_COMPARED)  # seconds of the last steps, of `_num_tokens` each
        self._wait_s = dict.fromkeys(self.candidates, MIN_WAIT_S)
        self._next_trial: dict[int, float] = {}  # set by the first step: loading may take long after this

    @contextmanager
    def measured(self, num_tokens: int) -> Iterator[None]:
        """Run the body, a step of `num_tokens`, with the best number of threads, or with one whose trial is due."""
        started = self._clock()
        if not self._next_trial:
            self._schedule_trials(started)
        if num_tokens != self._num_tokens:
            self._num_tokens = num_tokens
            self._compared.clear()
        threads = self.best
        if len(self._compared) == NUM_COMPARED:  # there are steps to compare a trial with
            trials = self._next_trial.items()
            threads = next((other for other, at in trials if at <= started and other != self.best), self.best)
        if threads != self._current:
            self._set_threads(threads)
            self._current = threads
        yield
        now = self._clock()
        if threads == self.best:
            self._compared.append(now - started)
        elif now - started <= ADVANTAGE * min(self._compared):
            self.best = threads
            self._compared.clear()
            self._schedule_trials(now)
        else:
            self._wait_s[threads] = wait_s = min(2 * self._wait_s[threads], MAX_WAIT_S)
            least_s = (now - started) / _MAX_TRIAL_SHARE if threads < self.best else 0.0
            self._next_trial[threads] = now + max(wait_s, least_s)

    def _schedule_trials(self, now: float) -> None:
        """Schedule trials of all candidates soon."""
        self._wait_s = dict.fromkeys(self.candidates, MIN_WAIT_S)
        self._next_trial = dict.fromkeys(self.candidates, now + MIN_WAIT_S)
