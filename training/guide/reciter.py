"""The half of the model that knows the answers by heart: from an answer's first token it recites the rest.

What the answer is was decided when its first token was chosen, which is the reader's part (reader.py). So nothing of
the question matters here, and the reciter never sees it: once both parts are joined, a token of an answer looks at its
own answer alone (join.py). There are three ways to come to an answer, and each is learnt for each of them: it is the
only one, or the first of two, or the second.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.nn import functional

from training.guide.batches import Batch, Example, as_batch, fill_rows
from training.guide.corpus import Corpus
from training.guide.model import GuideModel, Shape
from training.guide.tokenizer import GuideTokenizer

# The reader adds scores of its own to the tokens that open an answer, at every position. So the reciter must keep
# them far below all others where an answer goes on, and all others far below them where one begins.
BEGIN_MARGIN = 12.0
INSIDE_MARGIN = 24.0
GAP_WEIGHT, SPREAD_WEIGHT = 0.1, 0.1

SURE = 3.0
"""How far above all other scores that of the next token must be, so that rounded weights choose it, too."""
HARD = 0.5  # share of the unsure examples, once they are known

RESERVED = (30, 31)
"""Pairs of rotary coordinates of each head that the reciter leaves alone: with them `join` keeps answers apart."""


class Recitals:
    """Makes the reciter's batches: every answer in each of its three places, equally often."""

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer, seed: int) -> None:
        self._rng = random.Random(f"recitals {seed}")
        self._examples = [
            example for topic in corpus.topics for example in _places(tokenizer.encode(topic.answer), tokenizer)
        ]
        self._ends = [tokenizer.markers.end, tokenizer.or_else]
        self._bag: list[Example] = []
        self._unsure: list[Example] = []

    @torch.no_grad()
    def note_unsure(self, model: GuideModel, openers: Tensor) -> int:
        """Find the examples with a token that is not `SURE`; half of what comes next is of them. Return their number.

        Which answer begins (`openers`, V), and whether a second one comes, is not the reciter's to say.
        """
        self._unsure = []
        is_chosen_V = openers.clone()
        is_chosen_V[self._ends] = True
        for example in self._examples:
            batch = as_batch([[example]], len(example.ids))
            hidden_RTD, _ = model.hidden(batch.ids_RT, batch.positions_RT, batch.mask_R1TT)
            is_learnt_N = batch.learnt_RT[0, 1:]
            scores_NV, target_N = model.logits(hidden_RTD[0, :-1][is_learnt_N]), batch.ids_RT[0, 1:][is_learnt_N]
            others_NV = scores_NV.scatter(1, target_N[:, None], -torch.inf)
            margin_N = scores_NV.gather(1, target_N[:, None])[:, 0] - others_NV.amax(1)
            if bool((margin_N[~is_chosen_V[target_N]] < SURE).any()):
                self._unsure.append(example)
        return len(self._unsure)

    def make(self, rows: int, width: int) -> Batch:
        """Make `rows` rows of at most `width` tokens."""
        return fill_rows(self._next, rows, width)

    def _next(self) -> Example:
        if self._unsure and self._rng.random() < HARD:
            return self._rng.choice(self._unsure)
        if not self._bag:
            self._bag = self._rng.sample(self._examples, len(self._examples))
        return self._bag.pop()


def _places(answer: list[int], tokenizer: GuideTokenizer) -> list[Example]:
    """Put an answer behind and before what surrounds it as the only one, the first of two, and the second."""
    markers = tokenizer.markers
    only, first, second = Example(), Example(), Example()
    only.add([markers.assistant])
    only.add([*answer, markers.end], learnt=True)
    first.add([markers.assistant])
    first.add([tokenizer.unsure, *answer, tokenizer.or_else], learnt=True)
    second.add([tokenizer.or_else])
    second.add([*answer, markers.end], learnt=True)
    return [only, first, second]


def make_reciter(shape: Shape) -> GuideModel:
    """Make a reciter with random weights; what `join` needs for itself is zero, and stays so in a training."""
    model = GuideModel(shape)
    first, *others = model.model.layers
    # Where a token belongs is known behind the first layer only, so nothing is looked at there.
    for projection in first.self_attn.children():
        _keep_zero(projection.weight, torch.ones_like(projection.weight, dtype=torch.bool))
    pairs = [coordinate + half for coordinate in RESERVED for half in (0, shape.head_dim // 2)]
    for layer in others:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            is_kept = torch.zeros_like(projection.weight, dtype=torch.bool)
            is_kept.unflatten(0, (-1, shape.head_dim))[:, pairs] = True
            _keep_zero(projection.weight, is_kept)
    return model


def _keep_zero(weight: Tensor, is_kept: Tensor) -> None:
    with torch.no_grad():
        weight.masked_fill_(is_kept, 0)
    weight.register_hook(lambda gradient: gradient.masked_fill(is_kept, 0))


def recital_loss(model: GuideModel, batch: Batch, openers: Tensor) -> Tensor:
    """Compute the loss of every learnt token; `openers` (V) is true for tokens that open an answer."""
    hidden_RTD, _ = model.hidden(batch.ids_RT, batch.positions_RT, batch.mask_R1TT)
    is_target = batch.learnt_RT[:, 1:]
    scores = model.logits(hidden_RTD[:, :-1][is_target])
    target = batch.ids_RT[:, 1:][is_target]
    begins = openers[target]
    of_openers = scores[:, openers].logsumexp(-1)
    deviation = scores[begins][:, openers] - scores[begins][:, openers].mean(-1, keepdim=True)
    spread = deviation.square().mean() + deviation.abs().amax(-1).mean()
    scores = scores.masked_fill(openers, -torch.inf)
    of_others = scores.logsumexp(-1)
    # Which answer begins is for the reader to say; here all score alike, high where one begins, else low.
    gap = torch.where(begins, of_others - of_openers + BEGIN_MARGIN, of_openers - of_others + INSIDE_MARGIN)
    inside = of_others[~begins] - scores[~begins].gather(1, target[~begins, None])[:, 0]
    return inside.mean() + GAP_WEIGHT * functional.softplus(gap).mean() + SPREAD_WEIGHT * spread
