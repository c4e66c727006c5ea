"""The scores of models with predictions that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.perplexity.scores import Scorer

WINDOWS = [[0, 1, 0], [1, 1, 1]]


class Constant:
    """Predicts the same at every position."""

    def __init__(self, *probabilities: float) -> None:
        self._logits_V = torch.tensor(probabilities).log() + 3

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """The logits of all rows."""
        return self._logits_V.expand(len(token_ids), -1)


def score(reference: Any, model: Any) -> tuple[float, float, float]:
    return Scorer(reference, WINDOWS).score(model)


def test_a_model_is_as_near_to_itself_as_can_be():
    perplexity, kl, same = score(Constant(0.25, 0.75), Constant(0.25, 0.75))
    assert perplexity == pytest.approx((0.25 * 0.75**3) ** -0.25) and kl == 0 and same == 1


def test_divergence_is_that_of_the_model_from_the_reference():
    found = score(Constant(0.25, 0.75), Constant(0.75, 0.25))
    assert found[1] == pytest.approx(0.5 * math.log(3)) and found[2] == 0
    assert score(Constant(0.5, 0.5), Constant(0.1, 0.9))[1] == pytest.approx(0.5 * math.log(5) + 0.5 * math.log(5 / 9))
