"""Prompts are as long as asked, and random."""

import random

from app.loadgen.prompts import WORDS, token_ids, words


def test_words_are_as_many_as_asked_and_known():
    found = words(200, random.Random(0)).split(" ")
    assert len(found) == 200
    assert set(found) <= set(WORDS)


def test_no_word_is_there_twice():
    assert len(set(WORDS)) == len(WORDS)


def test_token_ids_are_below_the_size_of_the_vocabulary():
    found = token_ids(5000, 50, random.Random(0))
    assert len(found) == 5000
    assert set(found) == set(range(50))
