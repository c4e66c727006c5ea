"""The account that makes steps long rests for as long as one took, if the others' steps are much shorter without it."""

import pytest

from app.engine.schedule.rests import MAX_LONG, MAX_RESTS, PATIENCE, Rests
from app.engine.schedule.shares import SeatShares
from tests.engine.schedule.fake_groups import make_running


def resting(**seats: int) -> Rests:
    shares = SeatShares()
    for name, number in seats.items():
        shares.take(make_running(account=name), number)
    return Rests(shares)


def rest(rests: Rests, seconds: float) -> int:
    """Take steps of so many seconds without the account that rests; return how many."""
    number = 0
    while (account := rests.choose()) is not None:
        rests.observe(seconds, account)
        number += 1
    return number


def test_it_rests_for_as_long_as_its_step_took():
    rests = resting(flood=60, other=1)
    rests.observe(0.010, None)
    assert rests.choose() == "flood"
    assert rest(rests, 0.001) == pytest.approx(10, abs=1)


def test_however_short_the_others_steps_are_it_does_not_rest_for_ever():
    rests = resting(flood=60, other=1)
    rests.observe(0.010, None)
    assert rest(rests, 0.0) == MAX_RESTS


def test_where_the_others_have_little_from_it_it_is_not_tried_again_for_a_while():
    rests = resting(flood=60, other=1)
    for _ in range(MAX_LONG):
        rests.observe(0.010, None)
        assert rests.choose() == "flood"
        rests.observe(0.009, "flood")
    for _ in range(PATIENCE - 1):
        rests.observe(0.010, None)
        assert rests.choose() is None
    rests.observe(0.010, None)
    assert rests.choose() == "flood"


def test_a_few_steps_that_had_to_wait_for_a_core_say_nothing():
    rests = resting(flood=60, other=1)
    for _ in range(3):
        for _ in range(MAX_LONG - 1):
            rests.observe(0.010, None)
            rests.observe(0.009, "flood")
        assert rests.choose() == "flood"
        rests.observe(0.001, "flood")


def test_a_step_that_had_to_wait_counts_as_part_of_the_rest():
    rests = resting(flood=60, other=1)
    rests.observe(0.010, None)
    rests.observe(0.006, "flood")
    assert rest(rests, 0.001) == pytest.approx(4, abs=1)


def test_one_account_never_rests():
    rests = resting(flood=60)
    rests.observe(0.010, None)
    assert rests.choose() is None
