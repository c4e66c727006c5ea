"""The limits of one step: tokens that memory bears, seconds that people bear, and progress in spite of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.step_budget import (
    ALONE_S,
    DECODE_INTERVAL,
    FIRST_CHUNK,
    MAX_STRETCH,
    MIN_SHARE,
    MIN_STRETCH,
    MIN_TOKENS,
    RECOVERY_STEPS,
    StepBudget,
)

PER_TOKEN_S, CONSTANT_S = 0.001, 0.01


def seconds(num_tokens: int) -> float:
    """What a step takes on this test's machine."""
    return PER_TOKEN_S * num_tokens + CONSTANT_S


def observe(budget: StepBudget, num_steps: int) -> None:
    for step in range(num_steps):
        num_tokens = 8 + step % 4 * 30
        budget.observe(num_tokens, 100 * num_tokens, seconds(num_tokens), had_decodes=True)


def make_budget(max_tokens: int = 512, itl_target: float = 0.05, *, knows: bool = True) -> StepBudget:
    budget = StepBudget(max_tokens, itl_target)
    if knows:
        for _ in range(200):  # as a step does: ask, then tell
            budget.cost.predict(1, 1)
            observe(budget, 4)
        budget.num_over_target = 0
    return budget


NUM_DECODES = 8


def chunk(budget: StepBudget, num_left: int = 10_000, num_tokens: int = NUM_DECODES, has_decodes: bool = True) -> int:
    """What is left of a prompt's first `num_left` tokens in a step that has `num_tokens`, decodes among them or not."""
    limit_s = budget.limit_s(NUM_DECODES * has_decodes, 100 * NUM_DECODES * has_decodes)
    return budget.chunk(num_left, 0, num_tokens, 100 * num_tokens, limit_s)


def test_with_decodes_the_step_stays_under_the_target():
    size = chunk(make_budget())
    assert seconds(8 + size) == pytest.approx(0.05, rel=0.05)


def test_brown_out_shrinks_what_chunks_may_fill():
    budget = make_budget(itl_target=0.1)
    budget.scale = 0.5
    assert seconds(8 + chunk(budget)) == pytest.approx(0.05, rel=0.05)


def test_without_decodes_only_the_end_of_the_step_is_waited_for():
    assert chunk(make_budget(), num_tokens=0, has_decodes=False) == 512
    size = chunk(make_budget(max_tokens=5000), num_tokens=0, has_decodes=False)
    assert seconds(size) == pytest.approx(ALONE_S, rel=0.05)


def test_without_a_target_tokens_alone_count_while_there_are_decodes():
    assert chunk(make_budget(max_tokens=5000, itl_target=0.0)) == 5000 - 8
    assert chunk(make_budget(itl_target=0.0, knows=False)) == 512 - 8


def test_first_chunks_are_short_until_the_cost_is_known():
    budget = make_budget(itl_target=10.0, knows=False)
    for _ in range(8):
        assert chunk(budget) == chunk(budget, has_decodes=False) == FIRST_CHUNK
        observe(budget, 1)
    assert chunk(budget) != FIRST_CHUNK


@pytest.mark.parametrize("itl_target", [0.001, seconds(NUM_DECODES), MIN_STRETCH * seconds(NUM_DECODES)])
def test_a_target_that_decodes_alone_take_up_costs_nobody_the_prompt(itl_target):
    budget = make_budget(itl_target=itl_target)
    size = chunk(budget)
    assert seconds(NUM_DECODES + size) == pytest.approx(MIN_STRETCH * seconds(NUM_DECODES), rel=0.05)


@pytest.mark.parametrize("scale", [0.5, 0.1, 0.0])
def test_prompts_keep_a_share_of_the_time_whatever_holds_them_back(scale):
    budget = make_budget(itl_target=0.001)
    budget.scale = scale
    decode_s = seconds(NUM_DECODES)
    share_s = seconds(NUM_DECODES + chunk(budget)) - decode_s
    assert share_s >= 0.9 * MIN_SHARE * (decode_s + share_s)


def test_a_step_is_no_longer_than_it_pays_though_the_target_would_let_it():
    decode_s = seconds(NUM_DECODES)
    for itl_target, limit_s in ((0.9 * MAX_STRETCH * decode_s, 0.9), (1.5 * MAX_STRETCH * decode_s, 1.0)):
        budget = make_budget(itl_target=itl_target)
        expected = pytest.approx(limit_s * MAX_STRETCH * decode_s, rel=0.05)
        assert budget.limit_s(NUM_DECODES, 100 * NUM_DECODES) == expected
    budget = make_budget(itl_target=10 * MAX_STRETCH * decode_s)
    assert budget.limit_s(NUM_DECODES, 100 * NUM_DECODES) == pytest.approx(4 * MAX_STRETCH * decode_s, rel=0.05)


def test_a_chunk_that_takes_longer_than_there_is_time_is_as_large_as_is_asked_for():
    budget = make_budget()
    for num_left, num_tokens, at_least, expected in (
        (100, 60, 0, 0),
        (100, 60, 16, 16),
        (3, 60, 16, 3),
        (9, 509, 16, 3),
    ):
        assert budget.chunk(num_left, 0, num_tokens, 100 * num_tokens, 0.05, at_least) == expected


def test_now_and_then_a_step_is_for_decodes_alone_where_there_is_a_target():
    budget, steps = make_budget(), range(1, 10 * DECODE_INTERVAL + 1)
    assert sum(map(budget.is_for_decodes, steps)) == 10
    assert not any(map(make_budget(itl_target=0.0).is_for_decodes, steps))


@given(
    num_left=st.integers(1, 3000),
    start=st.integers(0, 3000),
    num_tokens=st.integers(0, 600),
    num_attended=st.integers(0, 10**6),
    has_decodes=st.booleans(),
    at_least=st.integers(0, 32),
    knows=st.booleans(),
    itl_target=st.sampled_from([0.0, 0.001, 0.05, 10.0]),
    scale=st.sampled_from([1.0, 0.5]),
)
def test_a_chunk_fits_the_prompt_and_the_budget_and_has_as_many_tokens_as_it_must(
    num_left, start, num_tokens, num_attended, has_decodes, at_least, knows, itl_target, scale
):
    budget = StepBudget(512, itl_target)
    budget.scale = scale
    if knows:
        observe(budget, 10)
    limit_s = budget.limit_s(num_tokens if has_decodes else 0, num_attended)
    size = budget.chunk(num_left, start, num_tokens, num_attended, limit_s, at_least)
    room = max(0, min(num_left, 512 - num_tokens))
    assert min(room, at_least) <= size <= room


def test_running_out_of_memory_halves_the_tokens_down_to_a_floor():
    budget, seen = make_budget(), []
    for _ in range(8):
        budget.halve()
        seen.append(budget.tokens)
    assert seen == [256, 128, 64, 32, 16, 8, 8, MIN_TOKENS]
    assert chunk(budget, num_tokens=0) == 8
    assert chunk(budget, num_tokens=8) == chunk(budget, num_tokens=9) == 0


def test_a_budget_below_the_floor_is_not_raised_by_halving():
    budget = StepBudget(5, 0.0)
    budget.halve()
    assert budget.tokens == 5


def test_the_tokens_grow_back_by_doubling_after_good_steps():
    budget = make_budget(max_tokens=511)
    assert budget.halve() and budget.tokens == 255
    observe(budget, RECOVERY_STEPS - 1)
    assert budget.tokens == 255
    observe(budget, 1)
    assert budget.tokens == 510
    observe(budget, RECOVERY_STEPS)
    assert budget.tokens == 511


def test_who_runs_out_again_and_again_waits_longer_each_time():
    budget = make_budget(max_tokens=512)
    for waits in (1, 2, 4, 8):
        assert budget.halve()
        observe(budget, waits * RECOVERY_STEPS - 1)
        assert budget.tokens == 256
        observe(budget, 1)
        assert budget.tokens == 512


def test_a_budget_that_is_as_small_as_it_gets_says_so():
    budget = make_budget(max_tokens=16)
    assert budget.halve() and budget.tokens == 8
    assert not budget.halve() and budget.tokens == 8


def test_another_failure_starts_the_wait_again():
    budget = make_budget()
    budget.halve()
    observe(budget, RECOVERY_STEPS - 1)
    budget.halve()
    observe(budget, RECOVERY_STEPS - 1)
    assert budget.tokens == 128


@pytest.mark.parametrize(
    ("itl_target", "took", "had_decodes", "counted"),
    [(0.05, 0.06, True, 1), (0.05, 0.05, True, 0), (0.05, 0.06, False, 0), (0.0, 9.0, True, 0)],
)
def test_steps_over_target_are_counted_while_answers_are_written(itl_target, took, had_decodes, counted):
    budget = StepBudget(512, itl_target)
    budget.observe(8, 100, took, had_decodes)
    assert budget.num_over_target == counted


def test_brown_out_does_not_move_the_line_that_is_counted_against():
    budget = StepBudget(512, 0.05)
    budget.scale = 0.5
    budget.observe(8, 100, 0.04, had_decodes=True)
    assert budget.num_over_target == 0
