"""The interval of a median, by the sign test."""

import random
import statistics

import pytest

from benchmarks.live.median_interval import CONFIDENCE, MedianInterval


@pytest.mark.parametrize(("count", "low", "high"), [(1, 1, 1), (2, 1, 2), (5, 1, 5), (6, 1, 6), (10, 2, 9), (20, 6, 15),
                                                    (40, 14, 27)])  # fmt: skip
def test_the_bounds_are_the_values_of_the_table_of_the_sign_test(count: int, low: int, high: int):
    values = [*range(1, count + 1)]
    random.Random(0).shuffle(values)
    found = MedianInterval.of(values)
    assert (found.low, found.high) == (low, high) and found.median == statistics.median(values)


def test_the_true_median_is_in_it_as_often_as_it_says():
    rng = random.Random(0)
    found = [MedianInterval.of([rng.expovariate(1) for _ in range(20)]) for _ in range(2000)]
    share = statistics.mean(one.low <= 0.6931 <= one.high for one in found)
    assert CONFIDENCE - 0.01 < share < 0.98


def test_it_is_written_with_its_bounds():
    assert str(MedianInterval(0.25, -0.5, 1.0)) == "0.250 (-0.500 to 1)"
