"""The models of lengths: reproducible, and with the means of the data sets."""

from statistics import mean

import pytest

from app.loadgen.lengths import MAX_LENGTH
from benchmarks.lengths import ALPACA, SHAREGPT, draw


@pytest.mark.parametrize("model", [SHAREGPT, ALPACA], ids=lambda model: model.name)
def test_a_seed_gives_the_same_lengths(model):
    assert draw(model, 50) == draw(model, 50, seed=0) == draw(model, 100)[:50]
    assert draw(model, 50) != draw(model, 50, seed=1)


@pytest.mark.parametrize("model", [SHAREGPT, ALPACA], ids=lambda model: model.name)
def test_lengths_are_between_1_and_the_maximum(model):
    lengths = [length for request in draw(model, 20_000) for length in request]
    assert min(lengths) >= 1
    assert max(lengths) <= MAX_LENGTH


def test_the_means_are_those_of_the_data_sets():
    """The maximum lowers the mean of ShareGPT-like outputs from 338 by a tenth; it hardly affects Alpaca-like ones."""
    sharegpt, alpaca = draw(SHAREGPT, 50_000), draw(ALPACA, 50_000)
    assert mean(request.num_prompt for request in sharegpt) == pytest.approx(158, rel=0.02)
    assert mean(request.num_answer for request in sharegpt) == pytest.approx(302, rel=0.02)
    assert mean(request.num_prompt for request in alpaca) == pytest.approx(19, rel=0.02)
    assert mean(request.num_answer for request in alpaca) == pytest.approx(58, rel=0.02)
