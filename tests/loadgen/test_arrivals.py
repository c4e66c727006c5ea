"""When requests are due: as many as asked for, in the time the rate says, as evenly as the burstiness says."""

import math
import random
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from app.loadgen.arrivals import arrival_times


def gaps(burstiness: float, count: int = 20_000) -> list[float]:
    """Seconds between requests at 2 per second."""
    return [later - earlier for earlier, later in pairwise(arrival_times(2.0, count, burstiness, random.Random(0)))]


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 10.0, math.inf])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_last_is_due_when_the_rate_says(count, burstiness):
    times = arrival_times(4.0, count, burstiness, random.Random(0))
    assert len(times) == count
    assert times == sorted(times) and times[0] > 0
    assert times[-1] == pytest.approx(count / 4)


def test_an_infinite_rate_is_all_at_once():
    assert arrival_times(math.inf, 3, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5), (math.inf, 0.0)])
def test_gaps_vary_as_those_of_a_gamma_distribution(burstiness, variation):
    """Its deviation is the mean by the root of the shape; 1 is the exponential distribution of a Poisson process."""
    found = gaps(burstiness)
    assert mean(found) == pytest.approx(0.5, rel=0.01)
    assert pstdev(found) / mean(found) == pytest.approx(variation, abs=0.05)


def test_a_poisson_process_has_as_many_short_gaps_as_it_should():
    assert sum(gap < 0.25 for gap in gaps(1.0)) / 20_000 == pytest.approx(1 - math.exp(-0.5), abs=0.01)


def test_gaps_too_small_for_a_float_are_all_at_once():
    assert set(arrival_times(1.0, 3, 1e-9, random.Random(0))) == {0.0}


def test_a_seed_gives_the_same_times_every_time():
    assert arrival_times(3.0, 9, 1.0, random.Random(5)) == arrival_times(3.0, 9, 1.0, random.Random(5))
