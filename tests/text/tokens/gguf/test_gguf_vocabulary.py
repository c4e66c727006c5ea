"""Hostile metadata of a vocabulary is rejected in one line, which names the key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.errors import ModelRefused
from app.text.template.spelled_tokens import SpelledTokens
from app.text.tokens.gguf import gguf_tokenizer, gguf_vocabulary
from app.text.tokens.gguf.gguf_vocabulary import MAX_SPECIAL_CHARS, MAX_TOKEN_CHARS, read_vocabulary
from tests.text.gguf_toys import byte_level, sentencepiece

TOKENS = tuple(byte_level()["tokenizer.ggml.tokens"])
TYPES = tuple(byte_level()["tokenizer.ggml.token_type"])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=4), st.none(), st.floats()), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None), ("tokens", "abc"), ("tokens", ()), ("tokens", {"a": 1}), ("tokens", (*TOKENS[1:], 7)),
        ("tokens", (*TOKENS[1:], TOKENS[1])), ("tokens", (*TOKENS[1:], "x" * (MAX_TOKEN_CHARS + 1))),
        ("tokens", ("<" + "s" * MAX_SPECIAL_CHARS, *TOKENS[1:])), ("tokens", (*TOKENS[1:], "\ud800")),
        ("token_type", None), ("token_type", TYPES[1:]), ("token_type", (*TYPES[1:], 7)),
        ("token_type", (*TYPES[1:], -1)), ("token_type", (*TYPES[1:], True)), ("token_type", (*TYPES[1:], 1.0)),
        ("bos_token_id", 500), ("bos_token_id", -1), ("eos_token_id", "2"), ("eos_token_id", True),
        ("eot_token_id", 10**30), ("unknown_token_id", (1,)), ("add_bos_token", 1), ("add_eos_token", "true"),
        ("merges", None), ("merges", ("a b", 1)), ("merges", "a b"),
    ],
)  # fmt: skip
def test_damaged_keys_are_rejected_by_name(key, value):
    with pytest.raises(ModelRefused, match=rf"tokenizer\.ggml\.{key} ") as caught:
        gguf_tokenizer.load(byte_level(**{key: value}))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300
    assert caught.value.param == "model"


KEYS = (
    "model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "eos_token_id", "eot_token_id",
    "unknown_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
)  # fmt: skip


@given(st.sampled_from((byte_level, sentencepiece)), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2))
def test_any_values_give_a_tokenizer_or_one_error(make, changed):
    try:
        gguf_tokenizer.load(make(**changed))
    except ModelRefused as error:
        assert "\n" not in error.message


@pytest.mark.parametrize(
    ("limit", "message"), [("MAX_VOCABULARY", "there must be between"), ("MAX_ADDED_TOKENS", "spec")]
)
def test_numbers_of_tokens_are_limited(limit, message, monkeypatch):
    monkeypatch.setattr(gguf_vocabulary, limit, 3)
    with pytest.raises(ModelRefused, match=message):
        read_vocabulary(byte_level())


def test_special_tokens_that_begin_with_each_other_can_be_searched():
    """Texts of special tokens are searched with nested groups, which Python limits."""
    SpelledTokens("<" * length for length in range(1, MAX_SPECIAL_CHARS + 1))


def test_named_tokens_are_those_of_templates():
    named = read_vocabulary(sentencepiece(padding_token_id=2, eot_token_id=300)).named_tokens
    assert named == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}


@pytest.mark.parametrize("key", ["padding_token_id", "seperator_token_id", "cls_token_id", "mask_token_id"])
@pytest.mark.parametrize("value", [len(TOKENS), 2**32 - 1, -1, "2", (1,)])
def test_a_wrong_id_that_nothing_needs_is_no_id(key, value):
    """Files of models without such a token name the number of tokens or 2^32 - 1; llama.cpp opens them."""
    assert read_vocabulary(byte_level(**{key: value})) == read_vocabulary(byte_level())
