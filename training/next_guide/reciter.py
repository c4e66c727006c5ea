"""The half of the model that knows the answers by heart: from an answer's first token it recites the rest.

What the answer is was decided when its first token was chosen, which is the reader's part (reader.py). So nothing of
the question matters here, and what stands before the answer is drawn at random: any question, at times a system
message, an earlier turn, or a first answer of two.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.nn import functional

from training.guide.corpus import Corpus, read_words
from training.guide.questions import Questions
from training.next_guide.batches import Batch, Example, fill_rows
from training.next_guide.model import GuideModel
from training.next_guide.tokenizer import GuideTokenizer

# The reader adds scores of its own to the tokens that open an answer, at every position. So the reciter must keep
# them far below all others where an answer goes on, and all others far below them where one begins.
BEGIN_MARGIN = 12.0
INSIDE_MARGIN = 24.0
GAP_WEIGHT, SPREAD_WEIGHT = 0.1, 0.1
SYSTEM, EARLIER_TURN, TWO_ANSWERS = 0.1, 0.1, 0.2  # shares of the examples
_SYSTEM_TAILS = ("Answer in English.", "Be friendly.", "Be brief.", "Use plain words.", "Do not guess.")


class Recitals:
    """Makes the reciter's batches: every answer equally often, behind a context that is drawn at random."""

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer, seed: int) -> None:
        self._rng = random.Random(f"recitals {seed}")
        self._tokenizer = tokenizer
        self._questions = Questions(corpus, self._rng)
        self._systems = read_words("system_prompts", separator="\n")
        self._answers = [tokenizer.encode(topic.answer) for topic in corpus.topics]
        self._bag: list[int] = []

    def make(self, rows: int, width: int) -> Batch:
        """Make `rows` rows of at most `width` tokens."""
        return fill_rows(self._example, rows, width)

    def _next_answer(self) -> list[int]:
        if not self._bag:
            self._bag = self._rng.sample(range(len(self._answers)), len(self._answers))
        return self._answers[self._bag.pop()]

    def _example(self) -> Example:
        rng, tokenizer, markers, example = self._rng, self._tokenizer, self._tokenizer.markers, Example()
        if rng.random() < SYSTEM:
            example.add(tokenizer.message(markers.system, system_prompt(self._systems, rng)))
        if rng.random() < EARLIER_TURN:
            self._add_turn(example, is_whole=rng.random() < 0.5)
        self._add_turn(example, is_whole=True)
        return example

    def _add_turn(self, example: Example, *, is_whole: bool) -> None:
        rng, tokenizer, markers = self._rng, self._tokenizer, self._tokenizer.markers
        example.add(tokenizer.message(markers.user, self._questions.ask(self._questions.next_topic())))
        example.add([markers.assistant])
        if rng.random() < TWO_ANSWERS:
            first = self._next_answer()
            # Of the first answer a part is enough at times: where the second one begins must not matter.
            start = 1 if rng.random() < 0.5 else rng.randrange(1, len(first))
            example.add([tokenizer.unsure], learnt=is_whole)
            example.add([first[0], *first[start:]], learnt=is_whole and start == 1)
            example.add([tokenizer.or_else], learnt=is_whole)
        answer = self._next_answer()
        example.add([*answer, markers.end], learnt=is_whole)


def system_prompt(systems: list[str], rng: random.Random) -> str:
    """Draw a system message, at times of several sentences."""
    text = rng.choice(systems)
    if rng.random() < 0.3:
        text += " " + rng.choice(systems)
    if rng.random() < 0.2:
        text += " " + rng.choice(_SYSTEM_TAILS)
    return text


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
