"""What never changes stands still after the timeout, in the eyes of one who is awake."""

from app.runtime.stall_detector import StallDetector, observation_interval


def looks(stall_detector: StallDetector, stamps: list[object], interval_s: float = 1.0) -> list[bool]:
    """Look at each stamp in turn, at steady times."""
    return [stall_detector.observe(stamp, 100 + i * interval_s) for i, stamp in enumerate(stamps)]


def test_what_never_changes_stands_still_after_the_timeout():
    assert looks(StallDetector(5, 1), ["a"] * 8) == [False] * 5 + [True] * 3


def test_what_changes_now_and_then_never_stands_still():
    assert not any(looks(StallDetector(5, 1), [stamp for stamp in range(20) for _ in range(5)]))


def test_what_has_nothing_to_do_never_stands_still():
    assert not any(looks(StallDetector(5, 1), [None] * 100))


def test_time_without_work_does_not_count():
    assert looks(StallDetector(5, 1), ["a"] * 4 + [None] + ["a"] * 6) == [False] * 10 + [True]


def test_a_jump_of_the_clock_or_a_suspended_process_counts_for_two_intervals_only():
    stall_detector = StallDetector(5, 1)
    times = [0, 1, 2, 10_000, 20_000]  # seen: 1, 1, 2, 2
    assert [stall_detector.observe("a", now) for now in times] == [False] * 4 + [True]


def test_a_timeout_of_zero_is_never_over():
    assert not any(looks(StallDetector(0, 1), ["a"] * 100))


def test_one_who_waits_for_several_things_looks_often_enough_for_each():
    assert observation_interval(30, 5, 15) == 3
    assert observation_interval(300, 5, 15) == 5
    assert observation_interval(0, 5, 15) == 5
