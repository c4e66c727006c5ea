"""Genes: the same numbers make the same thing, and changes come to new ones."""

from __future__ import annotations

import random

from benchmarks.hostile.genes import MAX_GENES, Genes, changed


def test_what_was_taken_makes_the_same_again():
    first = Genes((), random.Random(1))
    made = [first.below(10), first.of("abc"), first.below(1000)]
    again = Genes(first.taken, random.Random(2))
    assert [again.below(10), again.of("abc"), again.below(1000)] == made and again.taken == first.taken


def test_numbers_that_are_missing_are_random():
    genes = Genes((7,), random.Random(1))
    found = {genes.below(10) for _ in range(200)}
    assert genes.taken[0] == 7 and found == set(range(10))


def test_changes_keep_a_part_and_stay_short():
    source, numbers = random.Random(1), list(range(100))
    children = [changed(numbers, [1000] * 100, source) for _ in range(200)]
    assert all(len(set(child) & set(numbers)) > 0 or child[:1] == [1000] for child in children)
    assert sum(child != numbers for child in children) > 150
    assert {len(child) > 100 for child in children} == {True, False}
    assert len(changed([5] * 5 * MAX_GENES, [], source)) <= 2 * MAX_GENES


def test_nothing_can_be_changed_too():
    source = random.Random(1)
    assert [changed((), (), source) for _ in range(20)] == [[]] * 20
