"""Histograms have exact counts, and times to a per cent, also when merged."""

import json

import pytest

from benchmarks.streams.histogram import Histogram


def of(*seconds: float) -> Histogram:
    """The histogram of some times."""
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram


def test_percentiles_are_accurate_to_a_per_cent():
    histogram = of(*(number / 1000 for number in range(1, 1001)))
    for share in (0.01, 0.5, 0.99, 1.0):
        assert histogram.percentile(share) == pytest.approx(share, rel=0.01)
    assert histogram.longest == 1.0
    assert len(histogram) == 1000


def test_an_empty_histogram_has_no_times():
    assert (len(of()), of().percentile(0.99), of().longest) == (0, 0.0, 0.0)


def test_times_below_a_microsecond_are_counted():
    assert len(of(0.0, -1e-9)) == 2
    assert of(0.0).percentile(0.5) == pytest.approx(1e-6, rel=0.01)


def test_merged_histograms_have_all_values():
    parts = [Histogram.from_json(json.loads(json.dumps(of(*times).to_json()))) for times in ((0.1, 0.2), (0.3,), ())]
    merged = Histogram.merge(parts)
    assert (len(merged), merged.longest) == (3, 0.3)
    assert merged.percentile(0.5) == pytest.approx(0.2, rel=0.01)


def test_values_can_be_added_after_reading():
    histogram = of(0.1)
    assert histogram.percentile(1) == pytest.approx(0.1, rel=0.01)
    histogram.add(0.4)
    assert histogram.percentile(1) == pytest.approx(0.4, rel=0.01)
