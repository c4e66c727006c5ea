"""The index of n-grams: what it finds, what it does not, and that it stays small and quick to ask."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.speculation import ngram
from app.engine.schedule.speculation.ngram import LONG, SHORT, NgramIndex


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
    prompt = [rng.randrange(10_000) for _ in range(3 * ngram.MAX_TOKENS_PER_CALL)]
    index = NgramIndex([*prompt, *prompt[-20:-10]], [])
    assert [len(index.propose(4)) for _ in range(4)] == [0, 0, 4, 4]


def test_the_index_stays_small_and_forgets_what_is_long_ago(monkeypatch):
    monkeypatch.setattr(ngram, "MAX_TOKENS", 64)
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
