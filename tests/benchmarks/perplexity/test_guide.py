"""The perplexity of the quantized embedded model is within the limits, on a part of the questions."""

from __future__ import annotations

import pytest
import torch

from app.kernels.cpu.library import load_library
from benchmarks.limits import limits
from benchmarks.perplexity.guide import PLAIN, WAYS, Text, held_out_texts, perplexity
from benchmarks.perplexity.scored_model import MAX_TOKENS

LIMITS = limits("perplexity")
needs_kernels = pytest.mark.skipif(load_library() is None, reason="there are no native kernels here")


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    """A fifth of the held-out questions, with their answers."""
    torch.set_num_threads(1)
    return held_out_texts(every=5)


@pytest.fixture(scope="module")
def plain(texts: list[Text]) -> float:
    """The perplexity of the answers for the model without quantization."""
    return perplexity(texts)


def test_the_model_knows_its_answers_to_their_end_token(texts: list[Text], plain: float):
    assert len(texts) > 20
    assert len({text.answer[-1] for text in texts}) == 1, "all answers end with the same token"
    assert max(len(text.prompt) + len(text.answer) for text in texts) <= MAX_TOKENS
    assert 1 < plain < 1.1


@needs_kernels
@pytest.mark.parametrize("way", WAYS)
def test_quantized_models_are_within_their_limits(way: str, texts: list[Text], plain: float):
    assert perplexity(texts, **WAYS[way]) / plain - 1 <= (LIMITS[way].value if way in LIMITS else 0.01)


@pytest.mark.long
def test_torch_and_native_kernels_have_the_same_perplexity(texts: list[Text], plain: float):
    assert abs(perplexity(texts, enforce_eager=True) / plain - 1) < 0.002


def test_wrong_answers_have_a_higher_perplexity(texts: list[Text], plain: float):
    """The perplexity depends on the questions, though only with the first tokens of answers: the rest is recited."""
    shuffled = [Text(text.prompt, other.answer) for text, other in zip(texts, texts[1:] + texts[:1], strict=True)]
    assert perplexity(shuffled) / plain - 1 > 0.02


def test_quantization_has_limits():
    assert {name for name in LIMITS if name.startswith(PLAIN)} < set(WAYS)
