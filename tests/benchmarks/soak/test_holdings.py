"""How fast memory grows."""

import pytest

from benchmarks.soak.holdings import Holdings, slope


def test_the_slope_is_that_of_the_line_of_least_squares():
    found = [Holdings(100 + second, 5_000_000 + 300 * second + (second % 2), 9, 4, 7, 1) for second in range(60)]
    assert slope(found) == pytest.approx(300, abs=0.1)
    assert slope(found[:2]) == 0
