"""Brown-out: the level rises only under sustained pressure, never oscillates, and falls by itself."""

import logging
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.brownout_effects import MAX_LEVEL, effects
from app.engine.brownout import FALL_S, FULL_KV, RISE_S, WAITS_S, Brownout
from tests.cases import examples

TICK_S = 0.25
NO_PRESSURE, HIGHEST = 0.0, 1000.0


def press(brownout: Brownout, wait_s: float, seconds: float, start: float = 0.0, kv_usage: float = 0.5) -> list[float]:
    """Report a longest wait of `wait_s` for `seconds`; return the times of changes."""
    changes = []
    for tick in range(round(seconds / TICK_S) + 1):
        now = start + tick * TICK_S
        if brownout.update(now, 10, wait_s, kv_usage):
            changes.append(now)
    return changes


@pytest.mark.parametrize("level", range(MAX_LEVEL + 1))
def test_the_effects_are_those_of_the_table(level: int):
    brownout = Brownout()
    press(brownout, WAITS_S[level] if level < MAX_LEVEL else HIGHEST, 60.0)
    assert brownout.level == level
    assert brownout.chunk_scale == effects(level).chunk_scale


def test_the_level_rises_by_one_after_sustained_pressure():
    brownout = Brownout()
    changes = press(brownout, HIGHEST, 60.0)
    first = changes[0]
    assert first == RISE_S and len(changes) == MAX_LEVEL
    assert all(later - earlier >= RISE_S for earlier, later in pairwise(changes))


def test_a_short_burst_changes_nothing():
    brownout = Brownout()
    assert press(brownout, HIGHEST, RISE_S - TICK_S) == []
    assert not brownout.update(RISE_S, 10, NO_PRESSURE, 0.5)
    assert press(brownout, HIGHEST, RISE_S - TICK_S, start=RISE_S + TICK_S) == [], "pressure must last without a break"


@pytest.mark.parametrize("level", range(1, MAX_LEVEL + 1))
def test_the_level_stays_between_the_thresholds(level: int):
    brownout = Brownout()
    press(brownout, WAITS_S[level - 1] + 0.1, 60.0)
    assert brownout.level == level
    assert press(brownout, WAITS_S[level - 1] / 2, 600.0, start=100.0) == []


def test_the_level_falls_to_zero_one_by_one_without_pressure():
    brownout = Brownout()
    press(brownout, HIGHEST, 60.0)
    changes = press(brownout, NO_PRESSURE, 60.0, start=100.0)
    assert brownout.level == 0
    assert changes[0] == 100.0 + FALL_S and len(changes) == MAX_LEVEL
    assert all(later - earlier >= FALL_S for earlier, later in pairwise(changes))


def test_an_empty_queue_is_no_pressure():
    brownout = Brownout()
    press(brownout, HIGHEST, 60.0)
    for tick in range(200):
        brownout.update(100.0 + tick * TICK_S, 0, HIGHEST, 1.0)
    assert brownout.level == 0


def test_a_full_cache_doubles_the_weight_of_a_wait():
    half = WAITS_S[0] * 0.75
    for kv_usage, level in ((FULL_KV - 0.01, 0), (FULL_KV, 1)):
        brownout = Brownout()
        press(brownout, half, 10.0, kv_usage=kv_usage)
        assert brownout.level == level


@given(
    waits=st.tuples(st.floats(0, 100), st.floats(0, 100)),
    ticks=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_fast_changes_of_pressure_do_not_make_the_level_oscillate(waits, ticks):
    """With phases shorter than RISE_S the level moves in one direction only."""
    brownout, levels = Brownout(), [0]
    now = 0.0
    for swing in range(200):
        for _ in range(ticks[swing % 2]):
            brownout.update(now, 10, waits[swing % 2], 0.5)
            levels.append(brownout.level)
            now += TICK_S
    assert levels == sorted(levels)


STEPS = st.lists(
    st.tuples(st.floats(0.01, 10.0), st.integers(0, 3), st.floats(0, 60), st.floats(0, 1)), min_size=1, max_size=80
)


@given(steps=STEPS)
def test_changes_are_single_levels_within_bounds_and_not_too_frequent(steps):
    brownout, now, level, changed_at = Brownout(), 0.0, 0, -100.0
    for pause, num_waiting, wait_s, kv_usage in steps:
        now += pause
        is_changed = brownout.update(now, num_waiting, wait_s, kv_usage)
        assert is_changed == (brownout.level != level)
        assert 0 <= brownout.level <= MAX_LEVEL and abs(brownout.level - level) <= 1
        if is_changed:
            least = RISE_S if brownout.level > level else FALL_S
            assert now - changed_at >= least - 1e-9
            level, changed_at = brownout.level, now


WORSE = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 60), st.floats(0, 1)), min_size=20, max_size=80)


@given(steps=STEPS, worse=WORSE)
@settings(max_examples=examples(50))
def test_more_pressure_never_gives_a_lower_level(steps, worse):
    mild, harsh, now = Brownout(), Brownout(), 0.0
    for (pause, num_waiting, wait_s, kv_usage), (more, longer, fuller) in zip(steps, worse, strict=False):
        now += pause
        mild.update(now, num_waiting, wait_s, kv_usage)
        harsh.update(now, num_waiting + more, wait_s + longer, min(1.0, kv_usage + fuller))
        assert mild.level <= harsh.level


def test_a_rise_is_logged_as_a_warning_and_a_fall_as_information():
    brownout, messages = Brownout(), []
    for now in range(200):
        pressure_s = HIGHEST if now < 60 else NO_PRESSURE
        if brownout.update(float(now), 10, pressure_s, 0.5):
            messages.append(brownout.describe_change(pressure_s))
    assert [level for level, _ in messages] == [logging.WARNING] * MAX_LEVEL + [logging.INFO] * MAX_LEVEL
    assert messages[0][1].endswith(f"level 1 of {MAX_LEVEL}, prompts get less of each step.")
    assert messages[-1][1] == "The brown-out is over: no limits apply any more."
