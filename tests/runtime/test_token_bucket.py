"""A token bucket gives its burst at once, then tokens at its rate."""

from app.runtime.token_bucket import TokenBucket
from tests.fakes import FakeClock


def test_burst_then_rate():
    clock = FakeClock()
    bucket = TokenBucket(10, 20, clock)
    assert [bucket.take() for _ in range(21)] == [True] * 20 + [False]
    clock.advance(0.5)
    assert [bucket.take() for _ in range(6)] == [True] * 5 + [False]


def test_a_long_pause_gives_no_more_than_the_burst():
    clock = FakeClock()
    bucket = TokenBucket(10, 20, clock)
    clock.advance(1e6)
    assert [bucket.take() for _ in range(21)] == [True] * 20 + [False]
