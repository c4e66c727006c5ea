"""The format of repeated values."""

from benchmarks.figures import spread


def test_a_spread_is_the_median_with_minimum_and_maximum():
    assert spread([3.0, 1.0, 2.0]) == "2 (1-3)"
    assert (spread([2.0]), spread([])) == ("2", "-")
