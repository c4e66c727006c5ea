"""Packed batches: examples in one row do not attend to each other, and the loss is of answers only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.guide.batches import Batches, Example, Mixture, pack
from training.guide.corpus import Corpus, load_corpus
from training.guide.model import GuideModel, Shape
from training.guide.tokenizer import GuideTokenizer, train_tokenizer


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> GuideTokenizer:
    file: Path = tmp_path_factory.mktemp("guide") / "tokenizer.json"
    train_tokenizer(corpus, 1024, 0, file)
    return GuideTokenizer(file)


def _example(*ids: int) -> Example:
    example = Example()
    example.add(list(ids[:-1]), topic=0)
    example.add([ids[-1]], learnt=True)
    return example


def test_packing_keeps_every_token_and_counts_positions_from_zero() -> None:
    batch = pack([_example(5, 6, 7), _example(8, 9)])
    assert batch.ids_RT[0, :5].tolist() == [5, 6, 7, 8, 9]
    assert batch.positions_RT[0, :5].tolist() == [0, 1, 2, 0, 1]
    assert batch.learnt_RT[0].nonzero().flatten().tolist() == [2, 4]
    assert batch.topics_RT[0, :6].tolist() == [0, 0, -1, 0, -1, -1]


def test_a_packed_example_has_the_hidden_states_it_has_alone() -> None:
    torch.manual_seed(0)
    model = GuideModel(Shape(vocab_size=32, hidden=32, layers=2, head_dim=16, ffn=64)).eval()
    both, alone = pack([_example(5, 6, 7), _example(8, 9)]), pack([_example(8, 9)])
    with torch.no_grad():
        packed, _ = model.hidden(both.ids_RT, both.positions_RT, both.mask_R1TT)
        single, _ = model.hidden(alone.ids_RT, alone.positions_RT, alone.mask_R1TT)
    torch.testing.assert_close(packed[0, 3:5], single[0, :2])


def test_the_same_seed_makes_the_same_batches(corpus: Corpus, tokenizer: GuideTokenizer) -> None:
    first, second = (Batches(corpus, tokenizer, seed=3).make(16, Mixture()) for _ in range(2))
    assert torch.equal(first.ids_RT, second.ids_RT)


def test_only_answer_tokens_are_in_the_loss(corpus: Corpus, tokenizer: GuideTokenizer) -> None:
    mixture = Mixture(two_turns=0.5, whole_first_answers=1.0, system=0.5, whole_answers=1.0)
    batch = Batches(corpus, tokenizer, seed=1).make(32, mixture)
    learnt = batch.ids_RT[batch.learnt_RT].tolist()
    texts = tokenizer.decode(learnt).split("<|end|>")
    prefixes = {answer[:20] for answer in corpus.answers.values()}
    assert all(any(text.startswith(prefix) for prefix in prefixes) for text in texts if text)
    assert not {tokenizer.markers.user, tokenizer.markers.system} & set(learnt)


def test_every_byte_survives_the_tokenizer(tokenizer: GuideTokenizer) -> None:
    text = "`--max-num-seqs` 256\n\n```bash\n  a  # ü€😀\n```"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_greedy_generation_of_a_padded_batch_equals_each_prompt_alone() -> None:
    torch.manual_seed(1)
    model = GuideModel(Shape(vocab_size=32, hidden=32, layers=2, head_dim=16, ffn=64)).eval()
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    together = model.generate(prompts, max_tokens=6, end=0)
    assert together == [model.generate([prompt], max_tokens=6, end=0)[0] for prompt in prompts]
