"""What a client of a kept answer has: tokens, a tail, and what a parser held back until the end of a choice."""

from __future__ import annotations

import pytest

from app.api.wire.positions import Positions
from app.contract.events import TokenDelta


def delta(first: int, size: int, choice: int = 0) -> TokenDelta:
    return TokenDelta("r", choice, first, tuple(range(first, first + size)), "x")


def test_a_delta_is_new_behind_the_position_and_moves_it():
    positions = Positions([3])
    assert [positions.take(delta(1, 2)), positions.of(0)] == [False, 3]
    assert [positions.take(delta(3, 1)), positions.of(0)] == [False, 3]
    assert [positions.take(delta(4, 2)), positions.of(0)] == [True, 5]
    assert [positions.take(delta(6, 0)), positions.of(0)] == [True, 6]  # a tail
    assert positions.encode() == b"6"


@pytest.mark.parametrize(("after", "is_new"), [(0, True), (3, True), (4, True), (5, False)])
def test_the_rest_of_a_choice_has_the_number_above_all_of_its_deltas(after: int, is_new: bool):
    positions = Positions([after])
    positions.take(delta(1, 3))
    positions.take(delta(4, 0))
    assert positions.take_rest(0) == is_new
    assert positions.encode() == b"5"


def test_the_positions_of_several_choices_are_joined_by_dots():
    positions = Positions([0, 12])
    positions.take(delta(1, 17))
    assert positions.encode() == b"17.12"
