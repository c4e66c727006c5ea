"""A token bucket gives its burst at once, then tokens at its rate."""

from app.runtime.token_bucket import TokenBucket, TokenBuckets
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


def test_the_time_until_the_next_permit_is_told():
    clock = FakeClock()
    bucket = TokenBucket(0.5, 2, clock)
    assert bucket.seconds_left == 0 and bucket.is_full
    bucket.take()
    assert bucket.seconds_left == 0 and not bucket.is_full
    bucket.take()
    assert bucket.seconds_left == 2
    clock.advance(1.5)
    assert bucket.seconds_left == 0.5 and not bucket.take()
    clock.advance(2.5)
    assert bucket.seconds_left == 0 and bucket.is_full


def test_each_account_has_a_bucket_of_its_own():
    clock = FakeClock()
    buckets = TokenBuckets(0.5, 1, clock)
    assert buckets.seconds_left("one") == 0
    assert [buckets.take("one"), buckets.take("one"), buckets.take("other")] == [True, False, True]
    assert buckets.seconds_left("one") == 2 and buckets.seconds_left("third") == 0
    clock.advance(1)
    assert buckets.seconds_left("one") == 1


def test_full_buckets_are_dropped():
    clock = FakeClock()
    buckets = TokenBuckets(1, 1, clock)
    for account in range(100):
        buckets.take(str(account))
        clock.advance(1)
    assert len(buckets._buckets) == 1
