"""The pending bytes of a server are bounded, and an account with few of them is still admitted."""

import gc

import pytest

from app.contract.errors import Overloaded
from app.streaming.flow.flow_window import AccountBytes
from app.streaming.streams import Streams


class Held:
    """What waits of each account, as streams would keep it."""

    def __init__(self, limit: int) -> None:
        self.streams = Streams(limit)
        self.counts: dict[str, AccountBytes] = {}

    def add(self, account: str, num_bytes: int) -> None:
        self.counts[account] = self.streams.pending_of(account)
        self.counts[account].num_bytes += num_bytes


def test_alone_an_account_may_let_all_wait_and_then_gets_no_more():
    held = Held(1000)
    held.add("a", 1000)
    held.streams.check_pending("a")
    held.add("a", 1)
    with pytest.raises(Overloaded, match=r"1001 bytes .* 1001 of them for this account"):
        held.streams.check_pending("a")
    held.add("a", -1)
    held.streams.check_pending("a")


def test_an_account_with_too_many_pending_bytes_does_not_block_the_others():
    held = Held(1000)
    held.add("a", 5000)
    held.streams.check_pending("b")
    held.add("b", 499)
    held.streams.check_pending("b")
    held.add("b", 1)
    with pytest.raises(Overloaded, match="500 of them for this account"):
        held.streams.check_pending("b")
    with pytest.raises(Overloaded):
        held.streams.check_pending("a")
    held.streams.check_pending("c")


def test_however_many_accounts_come_what_waits_is_bounded():
    held = Held(1000)
    for number in range(2000):
        account = f"a{number}"
        try:
            while True:
                held.streams.check_pending(account)
                held.add(account, 1)
        except Overloaded:
            pass
    assert held.streams.pending_bytes <= 1000 * 8, "the harmonic number of 1,000 is 7.5"


def test_an_account_is_forgotten_with_its_last_answer():
    held = Held(1000)
    held.add("a", 5000)
    held.counts.clear()
    gc.collect()
    assert held.streams.pending_bytes == 0 and not held.streams._accounts
    held.streams.check_pending("a")
