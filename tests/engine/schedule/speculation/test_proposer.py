"""Proposers: the length of drafts, backing off, and the n-gram index."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.speculation import proposer as proposer_module
from app.engine.schedule.speculation.proposer import (
    FIRST_BACK_OFF,
    FIRST_CHANCE,
    LONG,
    MAX_BACK_OFF,
    SHORT,
    NgramIndex,
    Proposer,
)


def proposer(*text: int, ends: frozenset[int] = frozenset()) -> Proposer:
    """A proposer for a text."""
    return Proposer(NgramIndex(text, []), ends)


def test_drafts_grow_to_the_maximum_while_they_are_accepted():
    one = proposer()
    lengths = []
    for _ in range(8):
        lengths.append(one.length(0.3, 16, 100))
        one.learn(lengths[-1], lengths[-1], 100)
    assert lengths == sorted(lengths) and lengths[0] < 4 and lengths[-1] == 16


def test_drafts_shrink_while_they_are_rejected():
    one = proposer()
    one.learn(16, 16, 100)
    lengths = []
    for _ in range(5):
        lengths.append(one.length(0.1, 16, 100))
        one.learn(lengths[-1], 0, 100)
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < lengths[0] / 2


def test_a_partly_accepted_draft_counts_by_its_tokens():
    more, less = proposer(), proposer()
    more.learn(8, 6, 100)
    less.learn(8, 1, 100)
    assert more.chance > FIRST_CHANCE > less.chance


@pytest.mark.parametrize("cost", [0.05, 0.3, 0.55])
def test_a_draft_ends_where_another_token_would_not_pay(cost):
    one = proposer()
    length = one.length(cost, 64, 100)
    assert one.chance**length > cost >= one.chance ** (length + 1)


def test_a_too_expensive_draft_is_not_tried_and_does_not_back_off():
    one = proposer()
    assert [one.length(0.9, 16, num_tokens) for num_tokens in range(100, 120)] == [0] * 20
    assert one.length(0.1, 16, 120) > 0


def test_a_step_without_budget_does_not_back_off():
    one = proposer()
    one.learn(2, 0, 100)
    assert one.length(0.1, 0, 101) == 0 < one.length(0.1, 8, 102)


def test_rejected_drafts_back_off_exponentially():
    one, num_tokens = proposer(), 100
    tries = []
    for num_tokens in range(100, 1500):
        if length := one.length(0.1, 8, num_tokens):
            tries.append(num_tokens)
            one.learn(length, 0, num_tokens)
    pauses = [late - early for early, late in pairwise(tries) if late - early > 1]
    assert pauses[:4] == [FIRST_BACK_OFF, 2 * FIRST_BACK_OFF, 4 * FIRST_BACK_OFF, 8 * FIRST_BACK_OFF]
    assert max(pauses) == MAX_BACK_OFF
    assert len(tries) < 100


def test_an_accepted_draft_shortens_the_next_back_off():
    one = proposer()
    for _ in range(4):
        one.back_off(100)
    one.learn(2, 2, 100)
    one.back_off(1000)
    assert one.length(0.1, 8, 1000 + FIRST_BACK_OFF - 1) == 0 < one.length(0.1, 8, 1000 + FIRST_BACK_OFF)


def test_a_chance_below_the_cost_backs_off():
    one = proposer()
    one.learn(4, 0, 100)
    assert one.length(FIRST_CHANCE - 0.01, 8, 100) == 0
    assert one.length(0.1, 8, 101) == 0
    assert one.length(FIRST_CHANCE - 0.01, 8, 100 + FIRST_BACK_OFF) == 1


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16))), st.integers(1, 16))
def test_the_chance_is_a_probability_and_the_gain_within_the_length(results, length):
    one = proposer()
    for num_draft, num_accepted in results:
        one.learn(num_draft, min(num_draft, num_accepted), 100)
        assert 0.0 <= one.chance <= 1.0
        assert 0.0 <= one.gain(length) <= length


def test_the_gain_is_the_expected_number_of_accepted_tokens():
    one = proposer()
    assert one.gain(3) == pytest.approx(FIRST_CHANCE + FIRST_CHANCE**2 + FIRST_CHANCE**3)
    one.chance = 1.0
    assert one.gain(3) == 3.0


def test_a_draft_ends_before_a_token_that_ends_the_output():
    text = [7, 7, 7, 7, 1, 2, 3, 4, 5, 1, 2]
    assert proposer(*text).propose(3) == (3, 4, 5)
    assert proposer(*text, ends=frozenset({4, 9})).propose(3) == (3,)
    assert proposer(*text, ends=frozenset({3})).propose(3) == ()


# --- The index of n-grams ---------------------------------------------------------------------------------------------


def index_of(*tokens: int) -> NgramIndex:
    """An index that has indexed all of a text."""
    index = NgramIndex(tokens, [])
    for _ in range(len(tokens)):
        index.propose(1)
    return index


def search_plainly(tokens: list[int], count: int) -> list[int]:
    """The expected draft: search all of the text for each length, the last occurrence first."""
    for size in (LONG, SHORT):
        for position in range(len(tokens) - 1, LONG - 1, -1):
            if tokens[position - size : position] == tokens[-size:]:
                continued = list(tokens)
                for _ in range(count):
                    continued.append(continued[position + len(continued) - len(tokens)])
                return continued[len(tokens) :]
    return []


def test_the_tokens_after_an_earlier_occurrence_are_proposed():
    assert index_of(9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 1, 2).propose(4) == [3, 4, 5, 6]


def test_the_most_recent_occurrence_wins():
    assert index_of(9, 8, 7, 6, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2).propose(1) == [4]


def test_a_long_run_wins_over_a_more_recent_short_one():
    run = [1, 2, 3, 4, 5, 6]
    assert index_of(*run, 50, 99, 5, 6, 70, 99, *run).propose(1) == [50]


def test_a_text_without_repetition_has_no_draft():
    assert index_of(*range(40)).propose(8) == []
    assert index_of(*range(40), 3).propose(8) == []


@pytest.mark.parametrize("length", range(LONG))
def test_short_texts_have_no_draft(length):
    assert index_of(*[1] * length).propose(3) == []


@pytest.mark.parametrize("loop", [[1], [1, 2], [1, 2, 3, 4, 5]])
def test_a_repeated_run_is_continued(loop):
    text = loop * 20
    assert index_of(*text).propose(13) == (loop * 20)[:13]


def test_tokens_of_the_output_are_indexed():
    output: list[int] = []
    index = NgramIndex([5, 6, 7, 8, 9, 10, 11], output)
    assert index.propose(2) == []
    output += [20, 21]
    assert index.propose(2) == []
    output += [22, 23, 24, 20, 21]
    assert index.propose(3) == [22, 23, 24]
    assert index.propose(3) == [22, 23, 24]  # a proposal changes nothing


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 4), max_size=20), st.integers(1, 9))
def test_the_index_finds_the_same_as_a_search_of_all_the_text(text, steps, count):
    prompt, output, position = text[:10], [], 10
    index = NgramIndex(prompt, output)
    for step in steps:
        output += text[position : position + step]
        position += step
        assert index.propose(count) == search_plainly(prompt + output, count)


def test_a_long_prompt_is_indexed_over_several_calls():
    rng = Random(0)
    prompt = [rng.randrange(10_000) for _ in range(3 * proposer_module.MAX_TOKENS_PER_CALL)]
    index = NgramIndex([*prompt, *prompt[-20:-10]], [])
    assert [len(index.propose(4)) for _ in range(4)] == [0, 0, 4, 4]


def test_the_index_is_bounded_and_forgets_old_tokens(monkeypatch):
    monkeypatch.setattr(proposer_module, "MAX_TOKENS", 64)
    rng, output = Random(1), []
    index = NgramIndex([rng.randrange(10_000) for _ in range(500)], output)
    sizes = []
    for _ in range(1000):
        output.append(rng.randrange(10_000))
        index.propose(2)
        sizes.append(len(index._short) + len(index._long))
    assert max(sizes) <= 2 * 2 * 64
    output += output[-30:-20]
    assert index.propose(2) == output[-20 - 10 : -20 - 8]
    old = output[:10]
    output += old
    assert index.propose(2) == []
