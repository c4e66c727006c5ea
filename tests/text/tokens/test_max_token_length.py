"""The maximum length of a token is an upper bound for every token."""

import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.text.entry.frontend import placeholder_tokenizer
from app.text.tokens.max_token_length import MAX_COMPOSED, max_token_chars
from app.text.tokens.tokenizer import Tokenizer
from tests.text.toys import KINDS, byte_level, toy

BOUNDED = ("byte_level", "sentencepiece", "metaspace")
UNITS = st.sampled_from(["a", " ", "\n", "\t", "é", "e\u0301", "ǘ", "u\u0308\u0301", "猫", "🙂", "각", "<|im_start|>",
                         "the ", " dog", "\x00", "0", "<think>"])  # fmt: skip


@pytest.mark.parametrize("kind", BOUNDED)
@given(units=st.lists(UNITS, min_size=1, max_size=20), repeat=st.integers(1, 30))
def test_a_text_has_at_least_as_many_tokens_as_the_bound_requires(kind, units, repeat):
    tokenizer, text = toy(kind)[0], "".join(units) * repeat
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
    assert len(text) <= num_tokens * tokenizer.max_token_chars < sys.maxsize


def test_the_bound_is_the_length_of_the_longest_token():
    longest = max(toy("byte_level")[1].get_vocab(), key=len)
    assert toy("byte_level")[0].max_token_chars == len(longest) == len("<|start_header_id|>")
    assert 1 <= Tokenizer.load(FolderText(resolve("guide"))).max_token_chars <= 64


@given(text=st.lists(st.sampled_from(["u\u0308\u0301", "e\u0301", "\u1112\u1161\u11ab", "α\u0313\u0300\u0345"])))
def test_unicode_composition_raises_the_bound(text):
    backend = byte_level()
    backend.normalizer = normalizers.Sequence([normalizers.NFC()])
    assert max_token_chars(backend) == MAX_COMPOSED * toy("byte_level")[0].max_token_chars
    joined = "".join(text)
    assert len(joined) <= max_token_chars(backend) * len(backend.encode(joined).ids)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(BOUNDED)))
def test_unknown_words_of_any_length_are_one_token(kind):
    tokenizer, _ = toy(kind)
    assert len(tokenizer.encode("x" * 5000)) < 50
    assert tokenizer.max_token_chars == sys.maxsize


@pytest.mark.parametrize("normalizer", [
    normalizers.Strip(),
    normalizers.StripAccents(),
    normalizers.BertNormalizer(),
    normalizers.Replace(Regex(" +"), " "),
    normalizers.Replace("  ", " "),
    normalizers.Sequence([normalizers.NFC(), normalizers.Replace("a", "")]),
], ids=repr)  # fmt: skip
def test_a_normalizer_that_drops_characters_leaves_no_bound(normalizer):
    backend = byte_level()
    backend.normalizer = normalizer
    assert max_token_chars(backend) == sys.maxsize


@pytest.mark.parametrize("split", [
    pre_tokenizers.Whitespace(),
    pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.Split(" ", "removed"),
    pre_tokenizers.BertPreTokenizer(),
], ids=repr)  # fmt: skip
def test_a_split_that_drops_characters_leaves_no_bound(split):
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    assert max_token_chars(backend) == sys.maxsize


def test_a_token_that_strips_spaces_around_it_leaves_no_bound():
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<|wide|>", rstrip=True)])
    assert len(backend.encode("<|wide|>" + " " * 1000).ids) == 1
    assert max_token_chars(backend) == sys.maxsize


def test_a_vocabulary_that_lacks_bytes_leaves_no_bound():
    assert placeholder_tokenizer(256).max_token_chars == 1
    assert placeholder_tokenizer(255).max_token_chars == sys.maxsize
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    assert backend.encode("b" * 1000).ids == []
    assert max_token_chars(backend) == sys.maxsize


def test_token_ids_may_have_gaps():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: 2 * i for i, char in enumerate(alphabet)} | {"abcdef": 1000}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert max_token_chars(backend) == 6


def test_a_saved_tokenizer_has_the_same_bound(tmp_path: Path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(FolderText(tmp_path)).max_token_chars == toy("byte_level")[0].max_token_chars
