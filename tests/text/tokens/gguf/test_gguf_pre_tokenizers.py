"""The rules of words by pre type, with 500 tokens whose merges cross words, so that each other split has other ids.

The expected ids were made by the oracle of `gguf_toys`, and are committed, so that a change of either side is seen.
"""

import pytest

from app.text.tokens.gguf import gguf_tokenizer
from app.text.tokens.gguf.gguf_pre_tokenizers import PRE_TYPES
from tests.text.gguf_toys import COMPOSED, LAYOUTS, TEXTS, WHOLE_WORDS, byte_level, expected_ids, vectors


@pytest.mark.parametrize("pre", PRE_TYPES)
def test_ids_are_those_of_the_models_own_layout(pre):
    tokenizer = gguf_tokenizer.load(byte_level(pre))
    assert [tokenizer.encode(text) for text in TEXTS] == vectors()["ids"][pre]


@pytest.mark.parametrize("pre", PRE_TYPES)
def test_the_committed_ids_are_those_of_the_oracle(pre):
    assert [expected_ids(pre, text) for text in TEXTS] == vectors()["ids"][pre]


def test_every_rule_has_vectors_and_the_rules_differ_in_them():
    assert set(PRE_TYPES) == set(LAYOUTS) == set(vectors()["ids"])
    distinct = {(LAYOUTS[pre], pre in COMPOSED, pre in WHOLE_WORDS) for pre in LAYOUTS}
    assert len({str(ids) for ids in vectors()["ids"].values()}) >= len(distinct) - 1


@pytest.mark.parametrize("pre", PRE_TYPES)
def test_texts_survive_a_round_trip_but_for_their_composition(pre):
    tokenizer = gguf_tokenizer.load(byte_level(pre))
    normalizer = PRE_TYPES[pre].normalizer()
    for text in TEXTS:
        expected = text if normalizer is None else normalizer.normalize_str(text)
        assert tokenizer.decode(tokenizer.encode(text)) == expected


# One name of those that split in the same way.
SPLITS = {tokenizer.pre_tokenizer().__getstate__(): name for name, tokenizer in PRE_TYPES.items()}


@pytest.mark.parametrize("pre", SPLITS.values())
def test_long_repetitive_texts_are_split_in_linear_time(pre):
    """A rule that backtracks over all spaces from each of them needs an hour here."""
    pre_tokenizer = PRE_TYPES[pre].pre_tokenizer()
    assert pre_tokenizer.pre_tokenize_str(" " * 2**20 + "\u4e2d")
