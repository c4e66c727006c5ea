"""One Llama of the reader and the reciter: what is recited does not depend on the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.guide.corpus import NEXT_CORPUS, Corpus, load_corpus
from training.next_guide.batches import Batch
from training.next_guide.join import Thresholds, join
from training.next_guide.model import GuideModel, Shape
from training.next_guide.reader import Reader, Readings, Scales
from training.next_guide.tokenizer import GuideTokenizer, train_tokenizer

THRESHOLDS = Thresholds(unsure=3.0, unknown=0.5)


class Parts:
    """A reciter and a reader with random weights, a batch of questions, and both together."""

    def __init__(self, corpus: Corpus, tokenizer: GuideTokenizer) -> None:
        torch.manual_seed(0)
        self.corpus, self.tokenizer = corpus, tokenizer
        shape = Shape(tokenizer.vocab_size, hidden=192, layers=3, heads=4, kv_heads=2, ffn=64)
        self.reciter = GuideModel(shape).eval()
        with torch.no_grad():  # as large as after a training, or the reader's part would not be small beside it
            self.reciter.model.embed_tokens.weight.normal_(std=0.3)
        readings = Readings(corpus, tokenizer, seed=0)
        self.openers = [tokenizer.opening(answer) for answer in corpus.answers.values()]
        self.scales = Scales(self.reciter, [readings.make(64)])
        self.reader = Reader(tokenizer, self.openers, self.scales.means).eval()
        self.whole = join(self.reciter, self.reader, tokenizer, corpus, THRESHOLDS)
        self.batch: Batch = readings.make(64)
        self.chosen = self.batch.topics_RT >= 0

    @torch.no_grad()
    def scores(self, model: GuideModel) -> torch.Tensor:
        batch = self.batch
        hidden, _ = model.hidden(batch.ids_RT, batch.positions_RT, batch.mask_R1TT)
        return model.logits(hidden[self.chosen])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    corpus = load_corpus(NEXT_CORPUS)
    file: Path = tmp_path_factory.mktemp("guide") / "tokenizer.json"
    train_tokenizer(corpus, 1024, 0, file)
    return Parts(corpus, GuideTokenizer(file))


def test_ordinary_tokens_score_as_in_the_reciter(parts: Parts) -> None:
    ordinary = torch.ones(parts.tokenizer.vocab_size, dtype=torch.bool)
    ordinary[[*parts.openers, parts.tokenizer.unsure, parts.tokenizer.or_else, *parts.tokenizer.markers]] = False
    whole, alone = parts.scores(parts.whole)[:, ordinary], parts.scores(parts.reciter)[:, ordinary]
    torch.testing.assert_close(whole, alone, rtol=0.03, atol=0.2)
