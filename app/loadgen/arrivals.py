"""When requests are sent: a Poisson process, one that comes in bursts or evenly, or all at once.

The gaps are drawn from a gamma distribution. Its shape is the burstiness: 1 is a Poisson process, less comes in bursts,
more comes evenly, infinity is a metronome. The times are stretched so that as many requests as asked for take exactly
as long as the rate says; otherwise a short run would offer a tenth more or less than it was told to.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(rate: float, count: int, burstiness: float, rng: random.Random) -> list[float]:
    """Return when each of `count` requests is due, in seconds since the run began; the last at `count / rate`."""
    if math.isinf(rate):
        return [0.0] * count
    is_even = math.isinf(burstiness)
    times = list(accumulate(1.0 if is_even else rng.gammavariate(burstiness, 1.0) for _ in range(count)))
    if times[-1] == 0:  # gaps that small are 0 in floating point, as with a burstiness of 1e-9
        return times
    return [count / rate * (time / times[-1]) for time in times]
