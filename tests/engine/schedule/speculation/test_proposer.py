"""Proposers: how long a draft is, when there is none, and what the index of n-grams finds."""

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
    """A proposer over a text."""
    return Proposer(NgramIndex(text, []), ends)


def test_guesses_grow_while_they_are_right_up_to_the_most():
    one = proposer()
    lengths = []
    for _ in range(8):
        lengths.append(one.length(0.3, 16, 100))
        one.learn(lengths[-1], lengths[-1], 100)
    assert lengths == sorted(lengths) and lengths[0] < 4 and lengths[-1] == 16


def test_guesses_shrink_while_they_are_wrong():
    one = proposer()
    one.learn(16, 16, 100)
    lengths = []
    for _ in range(5):
        lengths.append(one.length(0.1, 16, 100))
        one.learn(lengths[-1], 0, 100)
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < lengths[0] / 2


def test_a_half_right_guess_counts_by_its_tokens():
    more, less = proposer(), proposer()
    more.learn(8, 6, 100)
    less.learn(8, 1, 100)
    assert more.chance > FIRST_CHANCE > less.chance


@pytest.mark.parametrize("cost", [0.05, 0.3, 0.55])
def test_the_last_token_of_a_guess_is_worth_its_price_and_one_more_would_not_be(cost):
    one = proposer()
    length = one.length(cost, 64, 100)
    assert one.chance**length > cost >= one.chance ** (length + 1)


def test_what_costs_more_than_it_can_gain_is_not_tried_and_does_not_tire():
    one = proposer()
    assert [one.length(0.9, 16, num_tokens) for num_tokens in range(100, 120)] == [0] * 20
    assert one.length(0.1, 16, 120) > 0


def test_a_step_without_room_does_not_tire_either():
    one = proposer()
    one.learn(2, 0, 100)
    assert one.length(0.1, 0, 101) == 0 < one.length(0.1, 8, 102)


def test_after_repeated_failures_it_is_quiet_for_a_while_and_then_tries_again():
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


def test_one_that_was_right_does_not_wait_as_long_the_next_time():
    one = proposer()
    for _ in range(4):
        one.back_off(100)
    one.learn(2, 2, 100)
    one.back_off(1000)
    assert one.length(0.1, 8, 1000 + FIRST_BACK_OFF - 1) == 0 < one.length(0.1, 8, 1000 + FIRST_BACK_OFF)


def test_a_chance_that_has_become_too_small_for_the_price_is_given_up_for_a_while():
    one = proposer()
    one.learn(4, 0, 100)
    assert one.length(FIRST_CHANCE - 0.01, 8, 100) == 0
    assert one.length(0.1, 8, 101) == 0
    assert one.length(FIRST_CHANCE - 0.01, 8, 100 + FIRST_BACK_OFF) == 1


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16))), st.integers(1, 16))
def test_a_chance_stays_a_chance_and_the_gain_within_the_length(results, length):
    one = proposer()
    for guessed, right in results:
        one.learn(guessed, min(guessed, right), 100)
        assert 0.0 <= one.chance <= 1.0
        assert 0.0 <= one.gain(length) <= length


def test_the_gain_is_the_mean_number_of_tokens_before_the_first_wrong_one():
    one = proposer()
    assert one.gain(3) == pytest.approx(FIRST_CHANCE + FIRST_CHANCE**2 + FIRST_CHANCE**3)
    one.chance = 1.0
    assert one.gain(3) == 3.0


def test_what_ends_an_answer_is_never_guessed_nor_what_follows_it():
    text = [7, 7, 7, 7, 1, 2, 3, 4, 5, 1, 2]
    assert proposer(*text).propose(3) == (3, 4, 5)
    assert proposer(*text, ends=frozenset({4, 9})).propose(3) == (3,)
    assert proposer(*text, ends=frozenset({3})).propose(3) == ()


# --- The index of n-grams ---------------------------------------------------------------------------------------------


def index_of(*tokens: int) -> NgramIndex:
    """An index that has taken in all of a text."""
    index = NgramIndex(tokens, [])
    for _ in range(len(tokens)):
        index.propose(1)
    return index


def found_plainly(tokens: list[int], count: int) -> list[int]:
    """What should be found, by looking through all of the text for each length, the last occurrence first."""
    for size in (LONG, SHORT):
        for place in range(len(tokens) - 1, LONG - 1, -1):
            if tokens[place - size : place] == tokens[-size:]:
                goes_on = list(tokens)
                for _ in range(count):
                    goes_on.append(goes_on[place + len(goes_on) - len(tokens)])
                return goes_on[len(tokens) :]
    return []


def test_what_came_after_the_last_tokens_before_is_found():
    assert index_of(9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 1, 2).propose(4) == [3, 4, 5, 6]


def test_the_most_recent_occurrence_wins():
    assert index_of(9, 8, 7, 6, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2).propose(1) == [4]


def test_a_long_run_wins_over_a_more_recent_short_one():
    run = [1, 2, 3, 4, 5, 6]
    assert index_of(*run, 50, 99, 5, 6, 70, 99, *run).propose(1) == [50]


def test_a_text_that_ends_with_nothing_it_had_before_is_not_guessed():
    assert index_of(*range(40)).propose(8) == []
    assert index_of(*range(40), 3).propose(8) == []


@pytest.mark.parametrize("length", range(LONG))
def test_short_texts_are_not_guessed(length):
    assert index_of(*[1] * length).propose(3) == []


@pytest.mark.parametrize("loop", [[1], [1, 2], [1, 2, 3, 4, 5]])
def test_a_run_that_repeats_itself_goes_on(loop):
    text = loop * 20
    assert index_of(*text).propose(13) == (loop * 20)[:13]


def test_tokens_of_the_answer_are_seen_when_they_come():
    answer: list[int] = []
    index = NgramIndex([5, 6, 7, 8, 9, 10, 11], answer)
    assert index.propose(2) == []
    answer += [20, 21]
    assert index.propose(2) == []
    answer += [22, 23, 24, 20, 21]
    assert index.propose(3) == [22, 23, 24]
    assert index.propose(3) == [22, 23, 24]  # asking changes nothing


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 4), max_size=20), st.integers(1, 9))
def test_it_finds_what_a_search_of_the_whole_text_finds(text, steps, count):
    prompt, answer, place = text[:10], [], 10
    index = NgramIndex(prompt, answer)
    for step in steps:
        answer += text[place : place + step]
        place += step
        assert index.propose(count) == found_plainly(prompt + answer, count)


def test_a_long_prompt_is_taken_in_over_several_calls():
    rng = Random(0)
    prompt = [rng.randrange(10_000) for _ in range(3 * proposer_module.MAX_TOKENS_PER_CALL)]
    index = NgramIndex([*prompt, *prompt[-20:-10]], [])
    assert [len(index.propose(4)) for _ in range(4)] == [0, 0, 4, 4]


def test_the_index_stays_small_and_forgets_what_is_long_ago(monkeypatch):
    monkeypatch.setattr(proposer_module, "MAX_TOKENS", 64)
    rng, answer = Random(1), []
    index = NgramIndex([rng.randrange(10_000) for _ in range(500)], answer)
    sizes = []
    for _ in range(1000):
        answer.append(rng.randrange(10_000))
        index.propose(2)
        sizes.append(len(index._short) + len(index._long))
    assert max(sizes) <= 2 * 2 * 64
    answer += answer[-30:-20]
    assert index.propose(2) == answer[-20 - 10 : -20 - 8]
    old = answer[:10]
    answer += old
    assert index.propose(2) == []
