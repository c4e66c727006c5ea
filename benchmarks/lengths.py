"""How long prompts and answers are: log-normal models of two well-known data sets, drawn from a seed.

The means are those of the ShareGPT and Alpaca traces in the PagedAttention paper (arXiv 2309.06180, figure 11); sigma
is 1.0 and both lengths are cut at 1,024, as OPT-13B's context of 2,048 asks for.
"""

import math
import random
from typing import NamedTuple

SIGMA = 1.0
MAX_LENGTH = 1024


class LengthModel(NamedTuple):
    """Mean tokens of prompts and answers before the cut."""

    name: str
    mean_prompt: float
    mean_answer: float


class Lengths(NamedTuple):
    """Tokens of one request."""

    num_prompt: int
    num_answer: int


SHAREGPT = LengthModel("ShareGPT-like", 161, 338)
ALPACA = LengthModel("Alpaca-like", 19, 58)
MODELS = {"sharegpt": SHAREGPT, "alpaca": ALPACA}


def draw(model: LengthModel, count: int, seed: int = 0) -> list[Lengths]:
    """Draw the lengths of `count` requests, each from 1 to 1,024 tokens."""
    rng = random.Random(seed)
    return [Lengths(_length(rng, model.mean_prompt), _length(rng, model.mean_answer)) for _ in range(count)]


def _length(rng: random.Random, mean: float) -> int:
    mu = math.log(mean) - SIGMA**2 / 2  # the mean of a log-normal is exp(mu + sigma²/2)
    return min(max(round(rng.lognormvariate(mu, SIGMA)), 1), MAX_LENGTH)
