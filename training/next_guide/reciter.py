"""The half of the model that knows the answers by heart: from an answer's first token it recites the rest.

What the answer is was decided when its first token was chosen, which is the reader's part (reader.py). So nothing of
the question matters here, and what stands before the answer is drawn at random: any question, at times a first answer
of two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from training.guide.corpus import Corpus
from training.guide.questions import Questions
from training.next_guide.batches import Batch, Example, fill_rows
from training.next_guide.model import GuideModel
from training.next_guide.tokenizer import GuideTokenizer

# The reader adds scores of its own to the tokens that open an answer, at every position. So the reciter must keep
# them far below all others where an answer goes on, and all others far below them where one begins.
BEGIN_MARGIN = 12.0
INSIDE_MARGIN = 24.0
GAP_WEIGHT, SPREAD_WEIGHT = 0.1, 0.1
TWO_ANSWERS = 0.2  # share of the examples
NUM_RIVALS = 6  # answers most like one, itself among them


class Recitals:
    """Makes the reciter's batches: every answer equally often, behind a context that is drawn at random.

    `related` is the share of the examples whose question, and first answer of two, are of the topics whose answers are
    most like the one to be recited, its own among them: their words are those of the answer, which the reciter must
    not go on from.
    """

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer, seed: int, related: float = 0.0) -> None:
        self._rng = random.Random(f"recitals {seed} {related}" if related else f"recitals {seed}")
        self._related = related
        self._tokenizer = tokenizer
        self._questions = Questions(corpus, self._rng)
        self._answers = [tokenizer.encode(topic.answer) for topic in corpus.topics]
        self._rivals = rivals(self._answers, tokenizer.vocab_size)
        self._bag: list[int] = []

    def make(self, rows: int, width: int) -> Batch:
        """Make `rows` rows of at most `width` tokens."""
        return fill_rows(self._example, rows, width)

    def _next_answer(self) -> int:
        if not self._bag:
            self._bag = self._rng.sample(range(len(self._answers)), len(self._answers))
        return self._bag.pop()

    def _example(self) -> Example:
        rng, tokenizer, example = self._rng, self._tokenizer, Example()
        number = self._next_answer()
        is_related = rng.random() < self._related
        asked = rng.choice(self._rivals[number]) if is_related else self._questions.next_topic()
        example.add(tokenizer.question(self._questions.ask(asked)))
        if rng.random() < TWO_ANSWERS:
            first = self._answers[rng.choice(self._rivals[number][1:]) if is_related else self._next_answer()]
            # Of the first answer a part is enough at times: where the second one begins must not matter.
            start = 1 if rng.random() < 0.5 else rng.randrange(1, len(first))
            example.add([tokenizer.unsure], learnt=True)
            example.add([first[0], *first[start:]], learnt=start == 1)
            example.add([tokenizer.or_else], learnt=True)
        example.add([*self._answers[number], tokenizer.markers.end], learnt=True)
        return example


def rivals(answers: Sequence[Sequence[int]], vocab_size: int) -> list[list[int]]:
    """List for each answer those with the most of its tokens, rare ones counting more; the first one is itself."""
    counts = torch.stack([torch.bincount(torch.tensor(answer), minlength=vocab_size) for answer in answers])
    rarity = (len(answers) / (counts > 0).sum(0).clamp(min=1)).log()
    tokens = functional.normalize(counts.sqrt() * rarity, dim=1)
    found: list[list[int]] = (tokens @ tokens.T).topk(NUM_RIVALS).indices.tolist()
    return found


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
