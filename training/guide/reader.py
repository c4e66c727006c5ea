"""The half of the model that reads the question and decides which answer begins.

Where an answer begins, the tokens of the question are averaged, each with a weight of its own, twice; what comes of it
is compared with one vector for each topic. It is a bag of words on purpose: on questions of people who saw none of the
wordings it was better than any deeper reading that these wordings can teach. Order, grammar and neighbours say little.

A second answer is chosen in the same way, after something was added that depends on the topic of the first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.guide.corpus import UNKNOWN, Corpus
from training.guide.questions import Questions
from training.guide.tokenizer import GuideTokenizer, as_read

HEADS = 2  # averages
WORDS = 58  # dimensions of a token
WIDTHS = (WORDS, 32)  # how many of them each average has
TOPIC = 61  # dimensions of a topic
GAIN = 6.0
SECOND = 0.1  # share of the examples that ask for a second answer
DROPPED_WORDS = 0.15
SHOWN = 0.3  # share of the `shown` questions, where a topic has some
ASKED = 0.7  # share, of the others, of those that somebody asked who did not know the others
AUGMENTED = 0.1  # share, of the rest, of those that are said in other words; the others are as they were written
MADE_UP = 0.5  # the same of foreign questions, most of which are made up
DROPOUT = 0.05


class Reading(NamedTuple):
    """Questions and the topics that their answers have; R=questions, T=tokens of the longest."""

    ids_RT: Tensor
    is_token_RT: Tensor
    topic_R: Tensor  # to be chosen
    first_R: Tensor  # the topic that was chosen before, else -1


class Reader(nn.Module):
    """The words, their weights, and the topics' vectors."""

    def __init__(self, vocab_size: int, num_topics: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, WORDS)
        self.weights = nn.Embedding(vocab_size, HEADS)
        self.sum = nn.Linear(sum(WIDTHS), TOPIC, bias=False)
        self.start = nn.Parameter(torch.zeros(TOPIC))
        self.again = nn.Linear(TOPIC, TOPIC, bias=False)
        self.topics = nn.Linear(TOPIC, num_topics, bias=False)
        self.dropout = nn.Dropout(DROPOUT)
        nn.init.normal_(self.words.weight, std=0.1)
        nn.init.zeros_(self.weights.weight)
        for layer in (self.sum, self.topics):
            nn.init.normal_(layer.weight, std=2 * layer.in_features**-0.5)
        nn.init.eye_(self.again.weight)
        with torch.no_grad():
            self.again.weight.mul_(-2)

    def forward(self, reading: Reading) -> Tensor:
        """Score the topics."""
        weights_RTH = self.weights(reading.ids_RT).masked_fill(~reading.is_token_RT[..., None], -torch.inf).softmax(1)
        sums_RHW = torch.einsum("rth,rtw->rhw", weights_RTH, self.words(reading.ids_RT))
        averages = [sums_RHW[:, head, :width] for head, width in enumerate(WIDTHS)]
        read_RC = self.start + GAIN * self.sum(torch.cat(averages, 1))
        first_RC = self.again(self.topics.weight[reading.first_R])
        read_RC = torch.where(reading.first_R[:, None] >= 0, read_RC + first_RC, read_RC)
        out: Tensor = self.topics(self.dropout(read_RC))
        return out


class Readings:
    """Makes the reader's batches: questions of every topic equally often."""

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer, seed: int) -> None:
        self._rng = random.Random(f"readings {seed}")
        self._tokenizer = tokenizer
        self._questions = Questions(corpus, self._rng)
        self._written = [
            [tokenizer.encode(as_read(text)) for text in (*topic.wordings, *topic.keywords)] for topic in corpus.topics
        ]
        self._shown = [[tokenizer.encode(as_read(text)) for text in topic.shown] for topic in corpus.topics]
        self._asked = [[tokenizer.encode(as_read(text)) for text in topic.asked] for topic in corpus.topics]
        self._unknown = corpus.names.index(UNKNOWN)
        # What each topic was last taken for: a second answer is asked for mostly after one of these.
        self._rivals = [(number + 1) % len(corpus.topics) for number in range(len(corpus.topics))]

    def make(self, size: int) -> Reading:
        """Make a batch of `size` questions."""
        chosen = [self._choices() for _ in range(size)]
        questions = [self._question(asked) for asked, _, _ in chosen]
        return as_reading(questions, [topic for _, topic, _ in chosen], [first for _, _, first in chosen])

    def note_rivals(self, topics: Sequence[int], taken_for: Sequence[int]) -> None:
        """Remember what topics were taken for."""
        for topic, other in zip(topics, taken_for, strict=True):
            if topic != other:
                self._rivals[topic] = other

    def _choices(self) -> tuple[int, int, int]:
        """Return the topic of the question, the one to be chosen, and the one chosen before."""
        topic = self._questions.next_topic()
        rival = self._rivals[topic]
        if topic == self._unknown or rival == self._unknown or self._rng.random() > SECOND:
            return topic, topic, -1
        # Behind the right answer comes what it was last taken for, behind a wrong one the right one.
        return (topic, topic, rival) if self._rng.random() < 0.5 else (topic, rival, topic)

    def _question(self, topic: int) -> list[int]:
        rng = self._rng
        if self._shown[topic] and rng.random() < SHOWN:
            return rng.choice(self._shown[topic])
        if self._asked[topic] and rng.random() < ASKED:
            ids = rng.choice(self._asked[topic])
        elif rng.random() < (MADE_UP if topic == self._unknown else AUGMENTED):
            ids = self._tokenizer.encode(as_read(self._questions.ask(topic)))
        else:
            ids = rng.choice(self._written[topic])
        if rng.random() < 0.8:
            ids = [token for token in ids if rng.random() > DROPPED_WORDS] or ids
        return ids


def as_reading(questions: Sequence[list[int]], topics: Sequence[int], firsts: Sequence[int]) -> Reading:
    """Put questions of different lengths into one batch."""
    longest = max(map(len, questions))
    ids = torch.tensor([question + [0] * (longest - len(question)) for question in questions])
    lengths = torch.tensor([len(question) for question in questions])
    return Reading(ids, torch.arange(longest) < lengths[:, None], torch.tensor(topics), torch.tensor(firsts))
