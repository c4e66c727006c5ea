"""Training batches: conversations cut to what teaches, packed into rows.

Most examples hold only the first tokens of the answer, because the first ones decide the topic and the rest is learnt
by heart from few whole answers. A conversation with an earlier turn teaches both answers.

Several examples share a row: [ example | example | ... | padding ], each with positions from 0 and blind to the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.guide.corpus import Corpus, read_words
from training.guide.questions import Questions
from training.guide.tokenizer import GuideTokenizer

MIN_ROW = 128
_SYSTEM_TAILS = ("Answer in English.", "Be friendly.", "Be brief.", "Use plain words.", "Do not guess.")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of the kinds of examples."""

    system: float = 0.1
    two_turns: float = 0.06
    whole_first_answers: float = 0.8  # of the earlier turns; the others hold the first tokens of the answer only
    whole_answers: float = 0.02
    routing_tokens: int = 6  # answer tokens of an example that is not whole


@dataclass(slots=True)
class Example:
    """One conversation: token ids, which of them are learnt, and the topic at each question token (else -1)."""

    ids: list[int] = field(default_factory=list)
    learnt: list[bool] = field(default_factory=list)
    topics: list[int] = field(default_factory=list)

    def add(self, ids: list[int], *, learnt: bool = False, topic: int = -1) -> None:
        """Append a piece of the conversation."""
        self.ids += ids
        self.learnt += [learnt] * len(ids)
        self.topics += [topic] * len(ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed examples; R=rows, T=positions."""

    ids_RT: Tensor
    positions_RT: Tensor
    learnt_RT: Tensor  # whether the token at this place is a target
    topics_RT: Tensor  # topic index at question tokens, else -1
    mask_R1TT: Tensor


class Batches:
    """Makes random batches of a corpus."""

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer, seed: int) -> None:
        self._rng = random.Random(f"batches {seed}")
        self._questions = Questions(corpus, self._rng)
        self._tokenizer = tokenizer
        self._systems = read_words("system_prompts", separator="\n")
        self._answers = [[*tokenizer.encode(topic.answer), tokenizer.markers.end] for topic in corpus.topics]

    def make(self, size: int, mixture: Mixture) -> Batch:
        """Make a batch of `size` examples."""
        return pack([self._example(mixture) for _ in range(size)])

    def _example(self, mixture: Mixture) -> Example:
        rng, example = self._rng, Example()
        if rng.random() < mixture.system:
            example.add(self._tokenizer.message(self._tokenizer.markers.system, self._system()))
        if rng.random() < mixture.two_turns:
            is_whole = rng.random() < mixture.whole_first_answers
            self._add_turn(example, rng.randrange(len(self._answers)), None if is_whole else mixture.routing_tokens)
            if not is_whole:
                example.add([self._tokenizer.markers.end])
        is_whole = rng.random() < mixture.whole_answers
        self._add_turn(example, self._questions.next_topic(), None if is_whole else mixture.routing_tokens)
        return example

    def _add_turn(self, example: Example, topic: int, num_answer_tokens: int | None) -> None:
        markers = self._tokenizer.markers
        example.add([markers.user])
        example.add(self._tokenizer.encode(self._questions.ask(topic)), topic=topic)
        example.add([markers.end, markers.assistant])
        example.add(self._answers[topic][:num_answer_tokens], learnt=True)

    def _system(self) -> str:
        rng = self._rng
        text = rng.choice(self._systems)
        if rng.random() < 0.3:
            text += " " + rng.choice(self._systems)
        if rng.random() < 0.2:
            text += " " + rng.choice(_SYSTEM_TAILS)
        return text


def pack(examples: list[Example]) -> Batch:
    """Pack examples first-fit, the longest first."""
    rows: list[list[Example]] = []
    ordered = sorted(examples, key=lambda example: -len(example.ids))
    width = max(MIN_ROW, len(ordered[0].ids))
    for example in ordered:
        for row in rows:
            if sum(len(other.ids) for other in row) + len(example.ids) <= width:
                row.append(example)
                break
        else:
            rows.append([example])
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions, owner = torch.zeros_like(ids), torch.full_like(ids, -1)
    learnt, topics = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, -1)
    for r, row in enumerate(rows):
        start = 0
        for number, example in enumerate(row):
            end = start + len(example.ids)
            ids[r, start:end] = torch.tensor(example.ids)
            positions[r, start:end] = torch.arange(end - start)
            owner[r, start:end] = number
            learnt[r, start:end] = torch.tensor(example.learnt)
            topics[r, start:end] = torch.tensor(example.topics)
            start = end
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    mask = (owner[:, :, None] == owner[:, None, :]) & causal
    return Batch(ids, positions, learnt, topics, mask[:, None])
