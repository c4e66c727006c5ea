"""The effects of each overload level."""

from itertools import pairwise

import pytest

from app.contract.brownout_effects import MAX_LEVEL, BrownoutEffects, effects

LEVELS = range(MAX_LEVEL + 1)


def test_level_0_has_no_effect():
    assert effects(0) == BrownoutEffects(chunk_scale=1.0, default_max_tokens=None, is_shedding=False)


def test_each_level_adds_to_the_one_before():
    for lower, higher in pairwise(LEVELS):
        before, after = effects(lower), effects(higher)
        assert before != after
        assert after.chunk_scale <= before.chunk_scale
        assert before.default_max_tokens is None or after.default_max_tokens == before.default_max_tokens
        assert after.is_shedding >= before.is_shedding


def test_only_the_highest_level_sheds_requests():
    assert [effects(level).is_shedding for level in LEVELS] == [False, False, False, True]
    assert [effects(level).default_max_tokens for level in LEVELS] == [None, None, 256, 256]


def test_an_unknown_level_is_an_internal_error():
    with pytest.raises(IndexError):
        effects(MAX_LEVEL + 1)
