"""The ways to sample that are compared, and how many answers of each are right."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from app.config.chosen_defaults import LLAMA_CPP, OPENAI

SETS: dict[str, dict[str, Any]] = {
    "its publisher's: 0.2, top-p 0.9": {"temperature": 0.2, "top_p": 0.9},
    "llama.cpp's: 0.8, top-k 40, top-p 0.95, min-p 0.05": {**LLAMA_CPP},
    "OpenAI's: 1": {**OPENAI},
    "greedy": {"temperature": 0.0},
    "0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "0.6, top-p 0.95": {"temperature": 0.6, "top_p": 0.95},
    "0.2, top-p 0.9, repetition penalty 1.1": {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1},
}
"""The first is the default of the model."""
OFF: dict[str, Any] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a set does not name."""

# Of a normal distribution: 95 % lie within.
_Z = 1.959964
# Of Student's t with 39 degrees of freedom, for the differences of the 40 questions.
_T = 2.022691


class Share(NamedTuple):
    """A share with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def share_of(num_right: int, num_all: int) -> Share:
    """Return a proportion with Wilson's interval."""
    value, spread = num_right / num_all, _Z**2 / num_all
    middle = (value + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(value * (1 - value) / num_all + spread / 4 / num_all)
    return Share(value, middle - half, middle + half)


def difference(shares: Sequence[float], of_default: Sequence[float]) -> Share:
    """Return how much better the questions' shares of right answers are than the default's, question by question.

    Questions are paired, because they differ far more from each other than ways to sample do.
    """
    each = [one - other for one, other in zip(shares, of_default, strict=True)]
    mean, half = statistics.fmean(each), _T * statistics.stdev(each) / math.sqrt(len(each))
    return Share(mean, mean - half, mean + half)
