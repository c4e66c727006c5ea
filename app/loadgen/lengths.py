"""Lengths of prompts and answers: fixed, or log-normal models of two well-known data sets.

The means are those of the ShareGPT and Alpaca traces in the PagedAttention paper (arXiv 2309.06180, figure 11). Sigma
is 1.0, and both lengths are limited to 1,024, because the paper's OPT-13B has a context of 2,048.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

SIGMA = 1.0
MAX_LENGTH = 1024


class LengthModel(NamedTuple):
    """Mean tokens of prompts and answers, before they are limited."""

    name: str
    mean_prompt: float
    mean_answer: float


class Lengths(NamedTuple):
    """Tokens of one request."""

    num_prompt: int
    num_answer: int


MODELS = {"sharegpt": LengthModel("ShareGPT-like", 161, 338), "alpaca": LengthModel("Alpaca-like", 19, 58)}


def fixed(num_prompt: int, num_answer: int) -> Iterator[Lengths]:
    """Yield the same lengths without end."""
    return repeat(Lengths(num_prompt, num_answer))


def sampled(model: LengthModel, seed: int = 0) -> Iterator[Lengths]:
    """Yield lengths without end, each from 1 to 1,024 tokens; the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        yield Lengths(_length(rng, model.mean_prompt), _length(rng, model.mean_answer))


def _length(rng: random.Random, mean: float) -> int:
    mu = math.log(mean) - SIGMA**2 / 2  # the mean of a log-normal is exp(mu + sigma²/2)
    return min(max(round(rng.lognormvariate(mu, SIGMA)), 1), MAX_LENGTH)
