"""Seats and rests by account: which account gains a seat, which loses one, and which rests."""

import pytest

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.shares import MAX_LONG_STEPS, MAX_RESTS, RETRY_STEPS, TURN_STEPS, Passing, Rests, SeatShares
from tests.engine.schedule.fake_groups import make_group, make_running_group


def make_shares(**accounts: list[int]) -> tuple[SeatShares, list[SequenceGroup]]:
    """Seat shares of accounts with RUNNING groups of these numbers of choices; also return the groups, in order."""
    shares, running = SeatShares(), []
    for name, sizes in accounts.items():
        for size in sizes:
            group = make_running_group(len(running) + 1, account=name, n=size)
            shares.add_seats(name, group.num_seats)
            running.append(group)
    return shares, running


def test_the_account_with_the_fewest_seats_is_next():
    shares, _ = make_shares(a=[1, 1], b=[1])
    waiting = [make_group(number, account=name) for number, name in ((11, "a"), (12, "b"), (13, "c"), (14, "d"))]
    for group in reversed(waiting):
        shares.add_waiting(group)
    for expected in (13, 14, 12, 11):
        found = shares.next_groups[0]
        assert found.id == expected
        shares.remove_waiting(found)
    assert shares.next_groups == []


def test_groups_of_an_account_are_in_the_policys_order():
    shares = SeatShares()
    for number in (3, 1, 2):
        shares.add_waiting(make_group(number, account="a"))
    assert [group.id for group in shares.next_groups] == [1]


def test_the_last_group_of_the_account_with_the_most_seats_loses_its_seat():
    shares, running = make_shares(a=[1, 1, 1], b=[1, 1])
    assert shares.losers(make_group(11, account="c"), 1, running) == [running[2]]


def test_no_account_falls_below_the_account_that_gains():
    shares, running = make_shares(a=[1, 1], b=[1])
    assert shares.losers(make_group(11, account="b"), 1, running) == []
    assert shares.losers(make_group(11, account="a"), 1, running) == []
    assert shares.losers(make_group(11, account="c", n=2), 2, running) == []


def test_several_accounts_lose_seats_or_none_does():
    shares, running = make_shares(a=[1] * 5, b=[1] * 4)
    found = shares.losers(make_group(11, account="c", n=3), 3, running)
    assert sorted(group.account for group in found) == ["a", "a", "b"]
    assert shares.losers(make_group(11, account="c", n=4), 4, running) == []


def test_a_protected_group_does_not_lose_its_seat():
    shares, running = make_shares(a=[1, 1, 1])
    running[2].is_protected = True
    assert shares.losers(make_group(11, account="c"), 1, running) == [running[1]]


def test_the_groups_that_have_had_their_seats_the_longest_give_way():
    shares, running = make_shares(a=[4], b=[4], c=[4], d=[1])
    for group, since in zip(running, (7, 5, 6, 1), strict=True):
        group.turn_since = since
    a, b, c, _ = running
    chat, wide, wider, widest = (make_group(11, account="e", n=number) for number in (1, 4, 5, 13))
    ends = 5 + TURN_STEPS
    assert shares.turns_to_end(chat, 1, running, ends - 1) == []
    assert shares.turns_to_end(chat, 1, running, ends) == [b]
    assert shares.turns_to_end(wide, 4, running, ends) == [b]
    assert shares.turns_to_end(wider, 5, running, ends) == []
    assert shares.turns_to_end(wider, 5, running, ends + 1) == [b, c]
    assert shares.turns_to_end(widest, 12, running, ends + 2) == [b, c, a]
    assert shares.turns_to_end(widest, 13, running, ends + 2) == []
    b.is_protected = True
    assert shares.turns_to_end(chat, 1, running, ends) == []
    assert shares.turns_to_end(chat, 1, running, ends + 1) == [c]


def test_nobody_gives_way_to_an_account_with_a_seat_or_a_group_that_has_just_run():
    shares, running = make_shares(a=[4], b=[1])
    assert shares.turns_to_end(make_group(11, account="b"), 1, running, 100) == []
    group = make_group(12, account="c", n=4)
    group.last_step = 101 - TURN_STEPS
    assert shares.turns_to_end(group, 4, running, 100) == []
    assert shares.turns_to_end(group, 4, running, 101) == [running[0]]


def test_an_answer_of_one_choice_never_gives_way():
    shares, running = make_shares(**{f"a{number}": [1] for number in range(8)})
    assert shares.turns_to_end(make_group(11, account="b"), 1, running, 100) == []


def test_a_group_that_gave_way_waits_behind_accounts_that_have_had_less():
    """Its account's later groups wait behind it."""
    shares, running = make_shares(a=[2])
    loser, gainer, other = running[0], make_group(5, account="b"), make_group(6, account="c")
    later = make_group(7, account="a")
    for group in (gainer, other, later):
        shares.add_waiting(group)
    for sequence in loser.open:
        sequence.start_at(6)  # four tokens of the prompt, and two of each answer: behind 1 + 8
    shares.give_way([loser], gainer)
    shares.add_waiting(loser)
    shares.add_seats("a", -2)
    assert loser.place == 9.0
    assert shares.next_groups == [gainer, other, loser] and shares.rank(later) > shares.rank(loser)


def test_groups_wait_in_the_order_in_which_they_gave_way():
    """However many tokens each has had: groups with few choices would else have several turns for one of a wide one."""
    shares, running = make_shares(a=[2], b=[2], c=[2])
    first, second, third = running
    gainer = make_group(5, account="d")
    shares.add_waiting(gainer)
    first.open[0].start_at(100)
    shares.give_way([first], gainer)
    shares.add_waiting(first)
    shares.give_way([third, second], gainer)
    assert first.place < third.place < second.place


def waiting_behind(shares: SeatShares, running: list[SequenceGroup], num_free: int, *sizes: int) -> Passing:
    """What may pass groups of new accounts that want so many seats and lack them."""
    passing = Passing(shares, running, num_free)
    for number, size in enumerate(sizes):
        passing.add(make_group(11 + number, account=f"new{number}", n=size), has_blocks=True)
    return passing


def test_no_group_of_several_choices_passes_one_that_waits_for_turns_to_end():
    shares, running = make_shares(a=[4], b=[1])
    assert not waiting_behind(shares, running, 3, 5).allows(make_group(21, account="d", n=2))
    lacks_blocks = Passing(shares, running, 3)
    lacks_blocks.add(make_group(11, account="c", n=5), has_blocks=False)
    assert lacks_blocks.allows(make_group(21, account="d", n=2))


def test_a_group_of_several_choices_passes_one_that_wants_more_seats_than_answers_of_one_choice_leave():
    shares, running = make_shares(a=[4], b=[1])
    passing = waiting_behind(shares, running, 3, 8)
    assert passing.allows(make_group(21, account="d", n=2)) and not passing.allows(make_group(21, account="d"))
    assert not waiting_behind(shares, running, 3, 8, 7).allows(make_group(21, account="d", n=2))


def test_an_answer_of_one_choice_passes_groups_that_will_have_their_seats_nevertheless():
    shares, running = make_shares(a=[4], b=[1])
    chat = make_group(21, account="d")
    assert waiting_behind(shares, running, 3, 6).allows(chat)
    assert not waiting_behind(shares, running, 3, 7).allows(chat)
    assert not waiting_behind(shares, running, 0, 6).allows(chat), "no seat is free"


def test_groups_pass_that_of_an_account_with_seats_if_it_will_have_enough_when_the_largest_ends():
    shares, running = make_shares(a=[4], b=[1])
    passing = Passing(shares, running, 3)
    passing.add(make_group(11, account="b", n=5), has_blocks=True)
    assert passing.allows(make_group(21, account="d", n=2)) and not passing.allows(make_group(21, account="d", n=3))


def test_an_account_without_seats_and_waiting_groups_is_forgotten():
    shares, _ = make_shares(a=[2])
    group = make_group(11, account="b")
    shares.add_waiting(group)
    shares.remove_waiting(group)
    shares.add_seats("a", -2)
    assert not shares._held and not shares._waiting


# --- Rests ------------------------------------------------------------------------------------------------------------


def make_rests(**seats: int) -> Rests:
    shares = SeatShares()
    for name, number in seats.items():
        shares.add_seats(name, number)
    return Rests(shares)


def rest(rests: Rests, seconds: float) -> int:
    """Observe steps of `seconds` while an account rests; return their number."""
    number = 0
    while (account := rests.choose()) is not None:
        rests.observe(seconds, account)
        number += 1
    return number


def test_an_account_rests_for_as_long_as_its_step_took():
    rests = make_rests(flood=60, other=1)
    rests.observe(0.010, None)
    assert rests.choose() == "flood"
    assert rest(rests, 0.001) == pytest.approx(10, abs=1)


def test_the_number_of_consecutive_rests_is_limited():
    rests = make_rests(flood=60, other=1)
    rests.observe(0.010, None)
    assert rest(rests, 0.0) == MAX_RESTS


def test_rests_that_save_little_time_are_not_retried_for_a_while():
    rests = make_rests(flood=60, other=1)
    for _ in range(MAX_LONG_STEPS):
        rests.observe(0.010, None)
        assert rests.choose() == "flood"
        rests.observe(0.009, "flood")
    for _ in range(RETRY_STEPS - 1):
        rests.observe(0.010, None)
        assert rests.choose() is None
    rests.observe(0.010, None)
    assert rests.choose() == "flood"


def test_a_few_slow_steps_do_not_stop_the_rests():
    rests = make_rests(flood=60, other=1)
    for _ in range(3):
        for _ in range(MAX_LONG_STEPS - 1):
            rests.observe(0.010, None)
            rests.observe(0.009, "flood")
        assert rests.choose() == "flood"
        rests.observe(0.001, "flood")


def test_a_slow_step_shortens_the_rest():
    rests = make_rests(flood=60, other=1)
    rests.observe(0.010, None)
    rests.observe(0.006, "flood")
    assert rest(rests, 0.001) == pytest.approx(4, abs=1)


def test_a_single_account_never_rests():
    rests = make_rests(flood=60)
    rests.observe(0.010, None)
    assert rests.choose() is None
