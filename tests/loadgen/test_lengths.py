"""Lengths: fixed, or distributed as in the data sets of the other benchmarks."""

from itertools import islice

import pytest

from app.loadgen.lengths import MODELS, Lengths, fixed, sampled
from benchmarks.lengths import MODELS as BENCHMARKS_MODELS
from benchmarks.lengths import draw


@pytest.mark.parametrize("name", MODELS)
def test_sampled_lengths_are_those_of_the_other_benchmarks(name):
    assert list(islice(sampled(MODELS[name], 3), 500)) == draw(BENCHMARKS_MODELS[name], 500, seed=3)


def test_fixed_lengths_are_all_the_same():
    assert list(islice(fixed(7, 9), 3)) == [Lengths(7, 9)] * 3
