"""The perplexity of the quantized embedded model is within the limits, on a part of the questions."""

from __future__ import annotations

import math

import pytest
import torch

from app.kernels.cpu.library import load_library
from benchmarks.limits import limits
from benchmarks.perplexity import MAX_TOKENS, PLAIN, WAYS, Score, Text, excess, held_out_texts, score

LIMITS = limits("perplexity")
needs_kernels = pytest.mark.skipif(load_library() is None, reason="there are no native kernels here")


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    """A fifth of the held-out questions, with their answers."""
    torch.set_num_threads(1)
    return held_out_texts(every=5)


@pytest.fixture(scope="module")
def plain(texts: list[Text]) -> Score:
    """The score of the answers by the model without quantization."""
    return score(texts)


def test_all_answers_are_scored_to_their_end_token(texts: list[Text], plain: Score):
    assert len(texts) > 20
    assert len({text.answer[-1] for text in texts}) == 1, "all answers end with the same token"
    assert max(len(text.prompt) + len(text.answer) for text in texts) <= MAX_TOKENS
    assert plain.num_tokens == sum(len(text.answer) for text in texts)
    assert 1 < plain.perplexity < 1.1, "the model knows its answers"


@needs_kernels
@pytest.mark.parametrize("way", WAYS)
def test_quantized_models_are_within_their_limits(way: str, texts: list[Text], plain: Score):
    assert excess(score(texts, **WAYS[way]), plain) <= (LIMITS[way].value if way in LIMITS else 0.01)


def test_torch_and_native_kernels_have_the_same_perplexity(texts: list[Text], plain: Score):
    assert abs(excess(score(texts, enforce_eager=True), plain)) < 0.002


def test_wrong_answers_have_a_higher_perplexity(texts: list[Text], plain: Score):
    """The scores depend on the questions."""
    shuffled = [Text(text.prompt, other.answer) for text, other in zip(texts, texts[1:] + texts[:1], strict=True)]
    assert excess(score(shuffled), plain) > 0.05


def test_the_excess_is_relative_to_the_plain_models_perplexity():
    assert math.isclose(excess(Score(1.5, 7), Score(1.2, 7)), 0.25)
    assert PLAIN in WAYS and set(LIMITS) < set(WAYS)
