"""A value that stays the same for the timeout is reported; time in which the process was suspended is not counted."""

from app.runtime.stall_detector import StallDetector, observation_interval


def check_stamps(stall_detector: StallDetector, stamps: list[object], interval_s: float = 1.0) -> list[bool]:
    """Check each stamp in turn, at regular times."""
    return [stall_detector.observe(stamp, 100 + i * interval_s) for i, stamp in enumerate(stamps)]


def test_a_value_that_never_changes_is_stalled_after_the_timeout():
    assert check_stamps(StallDetector(5, 1), ["a"] * 8) == [False] * 5 + [True] * 3


def test_a_value_that_sometimes_changes_is_never_stalled():
    assert not any(check_stamps(StallDetector(5, 1), [stamp for stamp in range(20) for _ in range(5)]))


def test_without_work_nothing_is_stalled():
    assert not any(check_stamps(StallDetector(5, 1), [None] * 100))


def test_time_without_work_is_not_counted():
    assert check_stamps(StallDetector(5, 1), ["a"] * 4 + [None] + ["a"] * 6) == [False] * 10 + [True]


def test_a_jump_of_the_clock_or_a_suspended_process_counts_for_two_intervals_only():
    stall_detector = StallDetector(5, 1)
    times = [0, 1, 2, 10_000, 20_000]  # seen: 1, 1, 2, 2
    assert [stall_detector.observe("a", now) for now in times] == [False] * 4 + [True]


def test_a_timeout_of_zero_never_expires():
    assert not any(check_stamps(StallDetector(0, 1), ["a"] * 100))


def test_the_interval_of_several_timeouts_suits_the_shortest():
    assert observation_interval(30, 5, 15) == 3
    assert observation_interval(300, 5, 15) == 5
    assert observation_interval(0, 5, 15) == 5
