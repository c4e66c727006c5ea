"""A median, and between which values that of endless measurements lies."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from app.loadgen.table import number

CONFIDENCE = 0.95


class MedianInterval(NamedTuple):
    """The median of what was measured, and two of the values, between which the true median lies."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MedianInterval:
        """Return the interval that has the true median with CONFIDENCE; of fewer than six values, all of them.

        Nothing else has to be known of the values: each is above the true median as often as below it, so how many are
        on one side follows the binomial distribution (the sign test).
        """
        ordered, count = sorted(values), len(values)
        outside, num_left_out = 2 / 2**count, 0  # the chance that the median is outside all but those left out
        while num_left_out < (count - 1) // 2:
            outside += 2 * comb(count, num_left_out + 1) / 2**count
            if outside > 1 - CONFIDENCE:
                break
            num_left_out += 1
        return cls(statistics.median(ordered), ordered[num_left_out], ordered[-1 - num_left_out])

    def __str__(self) -> str:
        low, median, high = map(number, (self.low, self.median, self.high))
        return f"{median} ({low} to {high})"
