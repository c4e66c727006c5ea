"""The pending bytes of a server are bounded, and an account with few of them is admitted nevertheless."""

import gc

import pytest

from app.contract.errors import Overloaded
from app.streaming.flow.flow_window import AccountBytes
from app.streaming.streams import Streams


class PendingStreams:
    """The pending bytes of each account."""

    def __init__(self, limit: int) -> None:
        self.streams = Streams(limit)
        self.counts: dict[str, AccountBytes] = {}

    def add(self, account: str, num_bytes: int) -> None:
        self.counts[account] = self.streams.pending_of(account)
        self.counts[account].num_bytes += num_bytes


def test_one_account_can_use_all_pending_bytes():
    pending = PendingStreams(1000)
    pending.add("a", 1000)
    pending.streams.check_pending("a")
    pending.add("a", 1)
    with pytest.raises(Overloaded, match=r"1001 bytes .* 1001 of them for this account"):
        pending.streams.check_pending("a")
    pending.add("a", -1)
    pending.streams.check_pending("a")


def test_an_account_with_too_many_pending_bytes_does_not_block_the_others():
    pending = PendingStreams(1000)
    pending.add("a", 5000)
    pending.streams.check_pending("b")
    pending.add("b", 499)
    pending.streams.check_pending("b")
    pending.add("b", 1)
    with pytest.raises(Overloaded, match="500 of them for this account"):
        pending.streams.check_pending("b")
    with pytest.raises(Overloaded):
        pending.streams.check_pending("a")
    pending.streams.check_pending("c")


def test_pending_bytes_of_any_number_of_accounts_are_bounded():
    pending = PendingStreams(1000)
    for number in range(2000):
        account = f"a{number}"
        try:
            while True:
                pending.streams.check_pending(account)
                pending.add(account, 1)
        except Overloaded:
            pass
    assert pending.streams.pending_bytes <= 1000 * 8, "the harmonic number of 1,000 is 7.5"


def test_an_account_is_removed_with_its_last_stream():
    pending = PendingStreams(1000)
    pending.add("a", 5000)
    pending.counts.clear()
    gc.collect()
    assert pending.streams.pending_bytes == 0 and not pending.streams._accounts
    pending.streams.check_pending("a")
