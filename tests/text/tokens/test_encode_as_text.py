"""Text in which special tokens stay text, with and without the tokens around it."""

import tracemalloc

import pytest
from tokenizers import processors

from app.text.template.spelled_tokens import SpelledTokens, encode_as_text
from app.text.tokens.tokenizer import Tokenizer
from tests.text import toys
from tests.text.toys import SPECIAL, toy


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("text", ["", "The quick fox", f"a{SPECIAL[2]}b{SPECIAL[0]}", SPECIAL[1]])
def test_special_tokens_are_text(kind, text):
    tokenizer, _ = toy(kind)
    token_ids = encode_as_text(tokenizer, text, add_special_tokens=False)
    assert not set(token_ids) & set(tokenizer.special_tokens.values())
    if kind != "metaspace":  # its decoder has no rule for bytes
        assert tokenizer.decode(token_ids) == tokenizer.decode(token_ids, skip_special_tokens=False) == text
    if not any(spelling in text for spelling in SPECIAL):
        assert token_ids == tokenizer.encode(text, add_special_tokens=False)


def test_tokens_around_a_text_are_added_on_their_sides():
    backend = toys.byte_level()
    start, end = (backend.token_to_id(token) for token in ("<s>", "</s>"))
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", start), ("</s>", end)])
    tokenizer = Tokenizer(backend, {})
    inside = encode_as_text(tokenizer, "a<s>b", add_special_tokens=False)
    assert encode_as_text(tokenizer, "a<s>b", add_special_tokens=True) == [start, *inside, end]
    assert encode_as_text(tokenizer, "ab", add_special_tokens=True) == tokenizer.encode("ab")


def test_many_special_tokens_are_marked_without_an_object_for_each():
    """Small objects of a large request keep memory: Python returns a mebibyte of them only when it has none in use."""
    spelled = SpelledTokens(SPECIAL)
    count = 250_000
    tracemalloc.start()
    try:
        (marked,), marks = spelled.mark([SPECIAL[0] * count])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert marked == f"{marks[0]}{SPECIAL[0]}{marks[1]}" * count
    assert peak < 100 * count  # twice the text, of four bytes a character, are 40
