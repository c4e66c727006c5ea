"""What clients have received in part: one cannot take it all, however many there are."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.http import byte_shares
from app.api.http.body_buffer import SMALL_BYTES
from app.api.http.byte_shares import ByteShares, Receiving

MIB = 2**20


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> ByteShares:
    monkeypatch.setattr(byte_shares, "MAX_BYTES", 16 * MIB)
    return ByteShares(MIB)


def fill(shares: ByteShares, account: str) -> int:
    """Receive bodies of a MiB until one is refused; return how many were not."""
    number = 0
    while Receiving(shares, account).has(MIB):
        number += 1
    return number


def test_each_client_gets_half_of_what_the_ones_before_it_leave(shares: ByteShares) -> None:
    assert [fill(shares, account) for account in "abcd"] == [8, 4, 2, 1]
    assert shares.num_bytes == 15 * MIB


def test_what_is_over_can_be_had_again(shares: ByteShares) -> None:
    bodies = [Receiving(shares, "a") for _ in range(8)]
    assert all(each.has(MIB) for each in bodies)
    more = Receiving(shares, "a")
    assert not more.has(MIB)
    bodies[0].has(0)
    assert more.has(MIB)
    for each in [*bodies, more]:
        each.has(0)
    assert shares.num_bytes == 0 and fill(shares, "a") == 8


def test_what_is_freed_is_told() -> None:
    freed = list[int]()
    shares = ByteShares(MIB, lambda: freed.append(1))
    body = Receiving(shares, "a")
    for num_bytes in (SMALL_BYTES, MIB, 2 * MIB, 0, SMALL_BYTES, 0):
        body.has(num_bytes)
    assert len(freed) == 1


def test_a_small_body_is_never_refused(shares: ByteShares) -> None:
    fill(shares, "a")
    small = Receiving(shares, "a")
    assert small.has(SMALL_BYTES) and not small.has(SMALL_BYTES + 1)


def test_one_client_may_send_two_of_the_largest_bodies(shares: ByteShares) -> None:
    assert ByteShares(100 * MIB).resize("a", 0, 200 * MIB)
    assert not ByteShares(100 * MIB).resize("a", 0, 200 * MIB + 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9 * MIB))))
def test_the_count_is_that_of_all_that_is_received(steps: list[tuple[str, int, int]]) -> None:
    shares = ByteShares(MIB)
    received: dict[tuple[str, int], Receiving] = {}
    sizes = Counter[tuple[str, int]]()
    for account, number, num_bytes in steps:
        each = received.setdefault((account, number), Receiving(shares, account))
        before = sizes.total()
        if each.has(num_bytes):
            sizes[account, number] = num_bytes if num_bytes > SMALL_BYTES else 0
        assert shares.num_bytes == sizes.total() <= max(before, byte_shares.MAX_BYTES)
    for each in received.values():
        assert each.has(0)
    assert shares.num_bytes == 0
