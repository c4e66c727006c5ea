"""Turns of accounts: who has spent least, where an account's share counts as nothing and all is forgotten in time."""

from __future__ import annotations

import pytest

from app.text.grammar.children import account_turns
from app.text.grammar.children.account_turns import MAX_ACCOUNTS, MAX_SPENT_S, SHARE, AccountTurns


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(account_turns, "time", clock)
    return clock


def order(turns: AccountTurns, accounts: str) -> str:
    """Return the accounts in the order of their turns."""
    left, found = list(accounts), ""
    while left:
        found += turns.next(left, lambda account: account)
        left.remove(found[-1])
    return found


def test_who_has_spent_least_comes_first(clock: Clock):
    turns = AccountTurns()
    for account, seconds in (("a", 0.3), ("b", 0.1), ("c", 0.2), ("b", 0.4)):
        turns.spend(account, seconds)
    assert order(turns, "abcd") == "dcab"


def test_a_share_of_the_time_counts_as_nothing(clock: Clock):
    turns = AccountTurns()
    for _ in range(50):
        clock.now += 1
        turns.spend("little", 0.9 * SHARE)
        turns.spend("more", 1.1 * SHARE)
    clock.now += 1
    assert turns.next(["more", "new", "little"], str) == "new"
    assert turns.next(["more", "little", "new"], str) == "little"


def test_all_is_forgotten_in_time(clock: Clock):
    turns = AccountTurns()
    turns.spend("a", 1e6)
    clock.now += 0.9 * MAX_SPENT_S / SHARE
    assert order(turns, "ab") == "ba"
    clock.now += 0.2 * MAX_SPENT_S / SHARE
    assert order(turns, "ab") == "ab"


def test_of_many_accounts_those_are_kept_that_have_spent_most(clock: Clock):
    turns = AccountTurns()
    turns.spend("a", 5.0)
    for number in range(5 * MAX_ACCOUNTS):
        turns.spend(f"account{number}", 0.001)
        assert len(turns._spent) <= MAX_ACCOUNTS
    assert order(turns, "ab") == "ba"
