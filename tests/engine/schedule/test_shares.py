"""Seats by account: the next goes to who holds the fewest, and who holds the most gives the last of its groups' up."""

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.shares import SeatShares
from tests.engine.schedule.fake_groups import make_group, make_running


def sharing(**accounts: list[int]) -> tuple[SeatShares, list[SequenceGroup]]:
    """Accounts whose RUNNING groups have so many choices each; return also the groups, in order."""
    shares, running = SeatShares(), []
    for name, sizes in accounts.items():
        for size in sizes:
            group = make_running(len(running) + 1, account=name, n=size)
            shares.take(group, group.num_seats)
            running.append(group)
    return shares, running


def test_who_holds_the_fewest_seats_is_next_and_among_equals_the_first_in_order():
    shares, _ = sharing(a=[1, 1], b=[1])
    waiting = [make_group(number, account=name) for number, name in ((11, "a"), (12, "b"), (13, "c"), (14, "d"))]
    for group in reversed(waiting):
        shares.wait(group)
    for expected in (13, 14, 12, 11):
        found = shares.next_group
        assert found is not None and found.id == expected
        shares.leave(found)
    assert shares.next_group is None


def test_within_an_account_the_order_is_the_policys():
    shares = SeatShares()
    for number in (3, 1, 2):
        shares.wait(make_group(number, account="a"))
    assert shares.next_group is not None and shares.next_group.id == 1


def test_the_last_of_the_account_that_holds_the_most_gives():
    shares, running = sharing(a=[1, 1, 1], b=[1, 1])
    assert shares.givers(make_group(11, account="c"), 1, running) == [running[2]]


def test_nobody_becomes_poorer_than_the_one_that_gains():
    shares, running = sharing(a=[1, 1], b=[1])
    assert shares.givers(make_group(11, account="b"), 1, running) == []
    assert shares.givers(make_group(11, account="a"), 1, running) == []
    assert shares.givers(make_group(11, account="c", n=2), 2, running) == []


def test_many_seats_come_from_several_accounts_or_none_gives():
    shares, running = sharing(a=[1] * 5, b=[1] * 4)
    found = shares.givers(make_group(11, account="c", n=3), 3, running)
    assert sorted(group.account for group in found) == ["a", "a", "b"]
    assert shares.givers(make_group(11, account="c", n=4), 4, running) == []


def test_who_lost_its_blocks_gains_a_token_before_it_gives_its_seat():
    shares, running = sharing(a=[1, 1, 1])
    running[2].is_protected = True
    assert shares.givers(make_group(11, account="c"), 1, running) == [running[1]]


def test_an_account_that_holds_nothing_and_waits_for_nothing_is_forgotten():
    shares, running = sharing(a=[2])
    group = make_group(11, account="b")
    shares.wait(group)
    shares.leave(group)
    shares.take(running[0], -2)
    assert not shares._held and not shares._waiting
