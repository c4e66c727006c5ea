"""One Llama of the reader and the reciter: it recites as the one, and chooses as the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.training.small_corpus import NUM_TOPICS, small_corpus, small_tokenizer
from training.guide.corpus import UNKNOWN
from training.guide.join import BEGINS, ENDS, GOES_ON, NEVER, STOPS, Thresholds, join
from training.guide.model import GuideModel, Shape
from training.guide.reader import Reader, as_reading
from training.guide.reciter import Recitals, make_reciter
from training.guide.tokenizer import as_read

THRESHOLDS = Thresholds(unsure=3.0, unknown=0.5)


@torch.no_grad()
def scores(model: GuideModel, ids: list[int]) -> Tensor:
    """Return the scores behind each token."""
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
    return model.logits(model.hidden(torch.tensor([ids]), torch.arange(len(ids))[None], mask)[0])[0]


class Parts:
    """A reciter and a reader with random weights, and both together."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.corpus, self.tokenizer = small_corpus(), small_tokenizer()
        shape = Shape(self.tokenizer.vocab_size, hidden=96, layers=3, heads=4, kv_heads=2, ffn=64)
        self.reciter = make_reciter(shape).eval()
        self.reader = Reader(self.tokenizer.vocab_size, len(self.corpus.topics)).eval()
        with torch.no_grad():  # as large as after a training, or the reader's part would not be small beside it
            self.reciter.model.embed_tokens.weight.normal_(std=0.3)
            self.reciter.model.embed_tokens.weight[self.tokenizer.markers.assistant].mul_(0.1)
            for layer in self.reciter.model.layers:
                layer.self_attn.o_proj.weight.mul_(300)
                layer.mlp.down_proj.weight.mul_(300)
            self.reader.words.weight.normal_(std=1.0)
            self.reader.weights.weight.normal_(std=1.0)
            self.reader.start.normal_(std=0.5)
        sample = Recitals(self.corpus, self.tokenizer, seed=0).make(8, 512)
        self.whole = join(self.reciter, self.reader, self.tokenizer, self.corpus, THRESHOLDS, sample)
        self.openers = [self.tokenizer.opening(answer) for answer in self.corpus.answers.values()]
        self.questions = [topic.wordings[1] for topic in self.corpus.topics]

    def added(self, before: list[int], part: list[int]) -> tuple[Tensor, Tensor]:
        """Return what the whole, behind `before`, adds to the reciter's scores of `part`: of openers, and of others."""
        added = scores(self.whole, [*before, *part])[len(before) :] - scores(self.reciter, part)
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
        *before, marker = parts.tokenizer.question(question)
        of_openers, _ = parts.added(before, [marker])
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
        before = [*tokenizer.question(question), tokenizer.unsure, *answer]
        of_openers, _ = parts.added(before, [tokenizer.or_else])
        expected = parts.read(question, first)
        expected[unknown] -= NEVER
        # The two models' scores differ by less than this: of two that are nearly equal either may be first.
        assert float(expected[of_openers[-1].argmax()]) > float(expected.max()) - 1
        assert float(of_openers[-1, unknown]) < float(parts.read(question, first)[unknown]) - NEVER / 2


def test_no_sentence_that_says_it_is_unsure_comes_twice(parts: Parts) -> None:
    unsure = parts.tokenizer.unsure
    for question in parts.questions:
        of_all = scores(parts.whole, [*parts.tokenizer.question(question), unsure, unsure])
        assert float(of_all[-2:, unsure].max()) < float(of_all[-2:, parts.openers].max(-1).values.min()) - NEVER / 4


@pytest.mark.parametrize("number", range(NUM_TOPICS))
def test_an_answer_is_recited_as_if_nothing_stood_before_it(parts: Parts, number: int) -> None:
    tokenizer, answers = parts.tokenizer, [parts.tokenizer.encode(topic.answer) for topic in parts.corpus.topics]
    *question, marker = tokenizer.question(parts.questions[0])
    only, first = [marker, *answers[number]], [marker, tokenizer.unsure, *answers[number]]
    second = [tokenizer.or_else, *answers[number]]
    behind = [*question, marker, tokenizer.unsure, *answers[number - 1]]
    for before, part in ((question, only), (question, first), (behind, second)):
        of_openers, of_others = parts.added(before, part)
        begin = part.index(answers[number][0])
        assert float(of_others[begin:].abs().max()) < 0.2
        assert float(of_openers[begin + 1 :].max()) < 0.5  # behind its opener an answer still has its own topic


def test_behind_a_first_answer_a_second_one_comes_and_not_the_end(parts: Parts) -> None:
    tokenizer, end = parts.tokenizer, parts.tokenizer.markers.end
    answer, (*before, marker) = tokenizer.encode(parts.corpus.topics[0].answer), tokenizer.question(parts.questions[0])
    for part, is_first in (([marker, tokenizer.unsure, *answer], True), ([marker, *answer], False)):
        added = (scores(parts.whole, [*before, *part])[len(before) :] - scores(parts.reciter, part))[-1]
        expected = (GOES_ON - ENDS) * is_first - STOPS
        assert float(added[tokenizer.or_else] - added[end]) == pytest.approx(expected, abs=2.5)


def test_what_stands_before_an_answer_would_disturb_the_reciter_alone(parts: Parts) -> None:
    """Or the test above would hold for any join."""
    tokenizer = parts.tokenizer
    *before, marker = tokenizer.question(parts.questions[0])
    part = [marker, *tokenizer.encode(parts.corpus.topics[0].answer)]
    difference = scores(parts.reciter, [*before, *part])[len(before) :] - scores(parts.reciter, part)
    assert float(difference.abs().max()) > 1
