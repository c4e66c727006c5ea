"""Packed batches: examples in one row do not attend to each other, and only answers are learnt."""

from __future__ import annotations

import torch

from tests.training.small_corpus import small_corpus, small_tokenizer
from training.guide.batches import Example, as_batch, fill_rows
from training.guide.model import GuideModel, Shape
from training.guide.reader import Readings
from training.guide.reciter import Recitals, make_reciter
from training.guide.tokenizer import OR_ELSE, UNSURE
from training.guide.train import reciter_shape


def _example(*ids: int) -> Example:
    example = Example()
    example.add(list(ids[:-1]))
    example.add([ids[-1]], learnt=True)
    return example


def test_packing_keeps_every_token_and_counts_positions_from_zero() -> None:
    batch = as_batch([[_example(5, 6, 7), _example(8, 9)]], width=8)
    assert batch.ids_RT[0, :5].tolist() == [5, 6, 7, 8, 9]
    assert batch.positions_RT[0, :5].tolist() == [0, 1, 2, 0, 1]
    assert batch.learnt_RT[0].nonzero().flatten().tolist() == [2, 4]


def test_a_packed_example_has_the_hidden_states_it_has_alone() -> None:
    torch.manual_seed(0)
    model = GuideModel(Shape(vocab_size=32, hidden=32, layers=2, head_dim=16, ffn=64)).eval()
    both, alone = as_batch([[_example(5, 6, 7), _example(8, 9)]], 5), as_batch([[_example(8, 9)]], 2)
    with torch.no_grad():
        packed, _ = model.hidden(both.ids_RT, both.positions_RT, both.mask_R1TT)
        single, _ = model.hidden(alone.ids_RT, alone.positions_RT, alone.mask_R1TT)
    torch.testing.assert_close(packed[0, 3:5], single[0, :2])


def test_rows_are_full_and_the_last_example_of_a_row_is_cut() -> None:
    batch = fill_rows(lambda: _example(5, 6, 7), num_rows=2, width=5)
    assert batch.ids_RT.tolist() == [[5, 6, 7, 5, 6]] * 2
    assert batch.positions_RT.tolist() == [[0, 1, 2, 0, 1]] * 2


def test_the_same_seed_makes_the_same_batches() -> None:
    corpus, tokenizer = small_corpus(), small_tokenizer()
    first, second = (Recitals(corpus, tokenizer, seed=3).make(2, 256) for _ in range(2))
    assert torch.equal(first.ids_RT, second.ids_RT)
    one, other = (Readings(corpus, tokenizer, seed=3).make(32) for _ in range(2))
    assert torch.equal(one.ids_RT, other.ids_RT) and torch.equal(one.topic_R, other.topic_R)


def test_every_answer_is_learnt_in_each_of_its_places() -> None:
    tokenizer, corpus = small_tokenizer(), small_corpus()
    examples = Recitals(corpus, tokenizer, seed=1)._examples
    assert all(not example.learnt[0] and all(example.learnt[1:]) for example in examples)
    shown = [tokenizer.decode(example.ids) for example in examples]
    for answer in corpus.answers.values():
        assert f"<|assistant|>{answer}<|end|>" in shown
        assert f"<|assistant|>{UNSURE}{answer}{OR_ELSE}" in shown
        assert f"{OR_ELSE}{answer}<|end|>" in shown


def test_what_is_not_recited_surely_comes_more_often() -> None:
    tokenizer, corpus = small_tokenizer(), small_corpus()
    recitals = Recitals(corpus, tokenizer, seed=1)
    openers = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
    reciter = make_reciter(reciter_shape(tokenizer))
    assert recitals.note_unsure(reciter, openers) == 3 * len(corpus.topics), "it has learnt nothing"
    unsure = recitals._unsure = recitals._unsure[:1]
    assert sum(recitals._next() is unsure[0] for _ in range(200)) > 60


def test_a_second_answer_is_of_another_topic_than_the_first() -> None:
    readings = Readings(small_corpus(), small_tokenizer(), seed=1)
    readings.note_rivals([0, 1], [3, 1])
    reading = readings.make(4000)
    is_second = reading.first_R >= 0
    assert 0 < int(is_second.sum()) < 4000
    assert bool((reading.first_R != reading.topic_R)[is_second].all())
    assert set(reading.first_R[is_second & (reading.topic_R == 0)].tolist()) >= {3}


def test_every_byte_survives_the_tokenizer() -> None:
    tokenizer, text = small_tokenizer(), "`--max-num-seqs` 256\n\n```bash\n  a  # ü€😀\n```"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_greedy_generation_of_a_padded_batch_equals_each_prompt_alone() -> None:
    torch.manual_seed(1)
    model = GuideModel(Shape(vocab_size=32, hidden=32, layers=2, head_dim=16, ffn=64)).eval()
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    together = model.generate(prompts, max_tokens=6, end=0)
    assert together == [model.generate([prompt], max_tokens=6, end=0)[0] for prompt in prompts]
