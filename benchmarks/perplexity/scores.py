"""How far a model's predictions are from those of the same model in bf16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from benchmarks.perplexity.scored_model import ScoredModel


class Score(NamedTuple):
    """Perplexity; mean divergence from the reference in nats; the share of positions with the same likeliest token."""

    perplexity: float
    kl: float
    same_first: float


class Scorer:
    """Scores models by what a reference predicts at every position of some windows of text."""

    def __init__(self, reference: ScoredModel, windows: Sequence[Sequence[int]]) -> None:
        self._windows = windows
        self._expected = [_predictions(reference, window) for window in windows]

    @torch.inference_mode()
    def score(self, model: ScoredModel) -> Score:
        """Return the score of a model: the divergence is that of the full distributions, computed in float32."""
        surprise, divergence, num_same, num_predicted, num_positions = 0.0, 0.0, 0, 0, 0
        for window, expected_TV in zip(self._windows, self._expected, strict=True):
            found_TV = _predictions(model, window)
            targets = torch.tensor(window[1:])[:, None]
            surprise -= float(found_TV[:-1].gather(1, targets).double().sum())
            divergences_T = kl_div(found_TV, expected_TV, reduction="none", log_target=True).sum(-1)
            divergence += float(divergences_T.double().sum())
            num_same += int((found_TV.argmax(-1) == expected_TV.argmax(-1)).sum())
            num_predicted += len(targets)
            num_positions += len(window)
        return Score(math.exp(surprise / num_predicted), divergence / num_positions, num_same / num_positions)


def _predictions(model: ScoredModel, window: Sequence[int]) -> Tensor:
    return log_softmax(model.logits(window), dim=-1)
