"""Guessers: how long a guess is, when there is none, and what it never holds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.speculation.ngram import NgramIndex
from app.engine.schedule.speculation.proposer import FIRST_BACK_OFF, FIRST_CHANCE, MAX_BACK_OFF, Proposer


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
