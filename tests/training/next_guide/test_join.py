"""One Llama of the reader and the reciter: it recites as the one, and chooses as the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.training.next_guide.small import small_corpus, small_tokenizer
from training.guide.corpus import UNKNOWN
from training.next_guide.join import BEGINS, NEVER, Thresholds, join
from training.next_guide.model import GuideModel, Shape
from training.next_guide.reader import Reader, as_reading
from training.next_guide.reciter import Recitals
from training.next_guide.tokenizer import as_read

THRESHOLDS = Thresholds(unsure=3.0, unknown=0.5)


class Parts:
    """A reciter and a reader with random weights, and both together."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.corpus, self.tokenizer = small_corpus(), small_tokenizer()
        shape = Shape(self.tokenizer.vocab_size, hidden=96, layers=3, heads=4, kv_heads=2, ffn=64)
        self.reciter = GuideModel(shape).eval()
        self.reader = Reader(self.tokenizer.vocab_size, len(self.corpus.topics)).eval()
        with torch.no_grad():  # as large as after a training, or the reader's part would not be small beside it
            self.reciter.model.embed_tokens.weight.normal_(std=0.3)
            self.reader.words.weight.normal_(std=1.0)
            self.reader.weights.weight.normal_(std=1.0)
            self.reader.start.normal_(std=0.5)
        sample = Recitals(self.corpus, self.tokenizer, seed=0).make(4, 256)
        self.whole = join(self.reciter, self.reader, self.tokenizer, self.corpus, THRESHOLDS, sample)
        self.openers = [self.tokenizer.opening(answer) for answer in self.corpus.answers.values()]
        self.questions = [topic.wordings[1] for topic in self.corpus.topics]

    @torch.no_grad()
    def added(self, prompt: list[int]) -> tuple[Tensor, Tensor]:
        """Return what the whole adds to the reciter's scores behind each token: of openers, and of other tokens."""
        ids, length = torch.tensor([prompt]), len(prompt)
        mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        hidden = [model.hidden(ids, torch.arange(length)[None], mask)[0] for model in (self.whole, self.reciter)]
        added = self.whole.logits(hidden[0])[0] - self.reciter.logits(hidden[1])[0]
        special = [*self.openers, self.tokenizer.unsure, self.tokenizer.or_else, *self.tokenizer.markers]
        is_other = torch.ones(added.shape[1], dtype=torch.bool)
        is_other[special] = False
        return added[:, self.openers], added[:, is_other]

    @torch.no_grad()
    def read(self, question: str, first: int = -1) -> Tensor:
        """Return the reader's own scores of the topics."""
        scores: Tensor = self.reader(as_reading([self.tokenizer.encode(as_read(question))], [0], [first]))[0]
        return scores


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


def test_the_first_choice_is_the_readers(parts: Parts) -> None:
    for question in parts.questions:
        of_openers, _ = parts.added(parts.tokenizer.question(question))
        expected = parts.read(question) + BEGINS
        expected[parts.corpus.names.index(UNKNOWN)] += THRESHOLDS.unknown
        # The last norm scales all scores of a choice alike.
        scale = float((of_openers[-1] @ expected) / (expected @ expected))
        assert 0.5 < scale < 2
        torch.testing.assert_close(of_openers[-1] / scale, expected, rtol=0.02, atol=0.1)


def test_a_second_choice_is_the_readers_and_never_the_rejection(parts: Parts) -> None:
    tokenizer, unknown = parts.tokenizer, parts.corpus.names.index(UNKNOWN)
    for first, question in enumerate(parts.questions[:-1]):
        answer = tokenizer.encode(parts.corpus.topics[first].answer)
        prompt = [*tokenizer.question(question), tokenizer.unsure, *answer, tokenizer.or_else]
        of_openers, _ = parts.added(prompt)
        expected = parts.read(question, first)
        expected[unknown] -= NEVER
        assert int(of_openers[-1].argmax()) == int(expected.argmax())
        assert float(of_openers[-1, unknown]) < float(parts.read(question, first)[unknown]) - NEVER / 2


def test_within_an_answer_nothing_is_added(parts: Parts) -> None:
    prompt = [*parts.tokenizer.question(parts.questions[0]), *parts.tokenizer.encode(parts.corpus.topics[0].answer)]
    of_openers, of_others = parts.added(prompt)
    begin = len(parts.tokenizer.question(parts.questions[0]))
    assert float(of_others.abs().max()) < 0.1
    assert float(of_openers[begin + 1 :].abs().max()) < 0.5  # behind its opener an answer still has its own topic
