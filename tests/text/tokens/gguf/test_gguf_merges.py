"""Merges: read and checked, and derived from scores as transformers derives them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.tokenization_utils_base import generate_merges

from app.contract.errors import ModelRefused
from app.text.tokens.gguf import gguf_merges
from app.text.tokens.gguf.gguf_merges import derive_merges, read_merges, respell_spaces
from app.text.tokens.gguf.gguf_vocabulary import Vocabulary, read_vocabulary
from tests.text.gguf_toys import sentencepiece


def vocabulary_of(tokens: list[str], types: list[int] | None = None) -> Vocabulary:
    """A vocabulary of tokens of type normal."""
    kinds = types or [1] * len(tokens)
    return read_vocabulary({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})


def derived(tokens: list[str], scores: list[float], types: list[int] | None = None) -> list[tuple[str, str]]:
    """The merges of tokens with scores."""
    vocabulary = vocabulary_of(tokens, types)
    return derive_merges({"tokenizer.ggml.scores": scores}, vocabulary, respell_spaces(vocabulary))


@given(st.lists(st.text("abc▁", min_size=1, max_size=6), min_size=2, max_size=40, unique=True), st.data())
def test_merges_are_those_of_transformers(tokens, data):
    scores = data.draw(st.lists(st.integers(-5, 0).map(float), min_size=len(tokens), max_size=len(tokens)))
    if len(set(scores)) == 1:
        scores[0] -= 1.0
    ids = {token: index for index, token in enumerate(tokens)}
    assert derived(tokens, scores) == generate_merges(ids, dict(zip(tokens, scores, strict=True)))


def test_equal_scores_give_way_to_ids():
    assert derived(["a", "b", "c", "bc", "ab"], [0.0] * 5) == [("b", "c"), ("a", "b")]


def test_special_unused_and_byte_tokens_are_not_merged():
    tokens = ["<", "s", ">", "<s", "<s>", "x>", "<0x41>", "<0x41"]
    types = [1, 1, 1, 1, 3, 1, 6, 5]
    assert derived(tokens, [-float(index) for index in range(8)], types) == [("<", "s")]


def test_spaces_of_user_defined_tokens_are_respelt_unless_that_is_a_token_already():
    vocabulary = vocabulary_of(["▁", "  ", "   ", "▁▁▁", "a b"], [1, 4, 4, 1, 1])
    assert list(respell_spaces(vocabulary)) == ["▁", "▁▁", "   ", "▁▁▁", "a b"]


@pytest.mark.parametrize("merge", ["ab", "a", "", "a ", " b", "a  b", "a x", "x b", "b a", "a b c"])
def test_a_merge_of_unknown_tokens_is_rejected_by_name(merge):
    with pytest.raises(ModelRefused, match="is not two tokens") as caught:
        read_merges({"tokenizer.ggml.merges": ["a b", merge]}, {"a": 0, "b": 1, "ab": 2})
    assert len(caught.value.message) < 300


def test_the_first_token_of_a_merge_may_be_a_space():
    assert read_merges({"tokenizer.ggml.merges": ["  a"]}, {" ": 0, "a": 1, " a": 2}) == [(" ", "a")]


@pytest.mark.parametrize("limit", ["MAX_PREFIXES", "MAX_MERGES"])
def test_tokens_that_begin_with_each_other_are_limited(limit, monkeypatch):
    monkeypatch.setattr(gguf_merges, limit, 1000)
    tokens = ["a" * length for length in range(1, 64)]
    with pytest.raises(ModelRefused, match="begin with other tokens"):
        derived(tokens, [-float(index) for index in range(len(tokens))])


def test_too_many_merges_are_rejected(monkeypatch):
    monkeypatch.setattr(gguf_merges, "MAX_MERGES", 1)
    with pytest.raises(ModelRefused, match="has 2 elements; at most 1"):
        read_merges({"tokenizer.ggml.merges": ["a b"] * 2}, {"a": 0, "b": 1, "ab": 2})


@pytest.mark.parametrize("scores", [[0.0], [float("nan")] * 3, [float("inf"), 0.0, 0.0], ["0"] * 3, None])
def test_damaged_scores_are_rejected(scores):
    with pytest.raises(ModelRefused, match=r"tokenizer\.ggml\.scores"):
        derived(["a", "b", "ab"], scores)


def test_merging_in_this_order_is_sentencepiece():
    """Of all neighbours that make a token, those with the highest score are merged first, from the left."""
    metadata = sentencepiece()
    vocabulary = read_vocabulary(metadata)
    ranks = {pair: rank for rank, pair in enumerate(derive_merges(metadata, vocabulary, vocabulary.ids))}
    scores = dict(zip(vocabulary.tokens, metadata["tokenizer.ggml.scores"], strict=True))
    random_ = random.Random(0)
    pairs = list(ranks)
    for _ in range(200):
        first, second = random_.choice(pairs), random_.choice(pairs)
        if scores["".join(first)] > scores["".join(second)]:
            assert ranks[first] < ranks[second]
