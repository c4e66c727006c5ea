"""The tokenizer of a model without one: bytes first, then numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.placeholder import placeholder_tokenizer

TOKENIZER = placeholder_tokenizer(1000)


@given(st.text(max_size=40))
def test_every_text_becomes_its_bytes_and_comes_back(text):
    token_ids = TOKENIZER.encode(text)
    assert len(token_ids) == len(text.encode())
    assert all(token_id < 256 for token_id in token_ids)
    assert TOKENIZER.decode(token_ids) == text


def test_every_further_id_reads_as_its_number():
    assert TOKENIZER.decode([256, 999]) == " 256 999"


@pytest.mark.parametrize("vocab_size", [1, 255, 256, 257])
def test_it_has_as_many_tokens_as_the_model(vocab_size):
    assert placeholder_tokenizer(vocab_size).vocab_size == vocab_size
