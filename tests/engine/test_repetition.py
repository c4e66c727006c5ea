"""The rule of repetition, compared with one that looks at all periods after each token, and where it must not hold."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.engine import repetition
from app.engine.repetition import Repetition
from tests.cases import examples


def holds(token_ids: list[int]) -> bool:
    """Whether the last 256 tokens or more are one period of at most 64 tokens, at least eight times."""
    for period in range(1, 65):
        length = max(256, 8 * period)
        last = token_ids[-length:]
        if len(last) == length and last[period:] == last[:-period]:
            return True
    return False


def told_at(token_ids: list[int], min_tokens: int = 0) -> int | None:
    """The number of tokens after which the rule is told to hold, or None."""
    watched = Repetition(min_tokens)
    return next((num for num, token_id in enumerate(token_ids, start=1) if watched.append(token_id)), None)


def holds_at(token_ids: list[int], min_tokens: int = 0) -> int | None:
    """The same by the definition."""
    numbers = range(max(1, min_tokens), len(token_ids) + 1)
    return next((num for num in numbers if holds(token_ids[:num])), None)


# Passages that begin again at any place, as often as hardly fits the rule: their ends are where a look could be late.
PERIODS = st.lists(st.integers(0, 2), min_size=1, max_size=66)
LENGTHS = st.sampled_from([1, 40, 223, 224, 225, 255, 256, 257, 447, 448, 511, 512, 513])
PASSAGES = st.lists(st.tuples(PERIODS, LENGTHS), min_size=1, max_size=4)


@settings(max_examples=examples(150))
@given(PASSAGES, st.sampled_from([0, 1, 255, 256, 300, 600]))
@example([([0], 254), ([1], 1), ([0], 256)], 0)
@example([(list(range(64)), 511), (list(range(64)), 512)], 0)
def test_it_is_told_at_the_first_token_where_the_rule_holds(passages, min_tokens):
    token_ids = [(period * length)[at] for period, length in passages for at in range(length)]
    assert told_at(token_ids, min_tokens) == holds_at(token_ids, min_tokens)


@pytest.mark.parametrize(("period", "length"), [(1, 256), (2, 256), (31, 256), (32, 256), (33, 264), (64, 512)])
def test_a_period_is_told_after_256_tokens_and_eight_times(period, length):
    before = [1000 + number for number in range(100)]
    passage = list(range(period)) * 600
    assert told_at(passage[:length]) == length
    assert told_at(passage[: length - 1]) is None
    assert told_at(before + passage[:length]) == len(before) + length


def test_a_longer_period_and_seven_times_are_no_repetition():
    assert told_at([*range(65)] * 40) is None
    assert told_at(([*range(40)] * 7 + [99]) * 10) is None


def test_a_hundred_tokens_have_at_most_two_looks(monkeypatch):
    """Whatever the tokens are: the passages here end just before the rule would hold, and others begin in them."""
    looked = []
    count = repetition._num_lacking
    monkeypatch.setattr(repetition, "_num_lacking", lambda token_ids: looked.append(True) or count(token_ids))
    period = [*range(63), 0]
    token_ids = ([0] * 254 + [1] + period * 7 + [2] + [3, 4] * 127 + [5]) * 20
    watched, places = Repetition(), []
    for place, token_id in enumerate(token_ids):
        num_before = len(looked)
        assert not watched.append(token_id)
        places += [place] * (len(looked) - num_before)
    assert len(places) > 50
    assert all(third - first > 90 for first, third in zip(places, places[2:], strict=False))


def test_an_answer_keeps_no_more_tokens_than_the_rule_reads():
    watched = Repetition()
    for number in range(100_000):
        watched.append(number)
        assert len(watched._token_ids) < 512 + 256
