"""The limits of one step: tokens, seconds, and the minimum share of prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.queues import RowPool
from app.engine.schedule.sequence import RUNNING, WAITING
from app.engine.schedule.shares import PROMPT_STEP_SHARE, Rests, SeatShares
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
from app.engine.schedule.step_builder import StepPlanBuilder
from tests.engine.schedule.fake_groups import new_tokens
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel

PER_TOKEN_S, CONSTANT_S = 0.001, 0.01


def seconds(num_tokens: int) -> float:
    """The duration of a step in these tests."""
    return PER_TOKEN_S * num_tokens + CONSTANT_S


def make_step(budget: StepBudget, num_tokens: int, num_attended: int, has_decodes: bool = True) -> StepPlanBuilder:
    """A step that already has `num_tokens` tokens."""
    step = StepPlanBuilder(1, 0.0, budget.tokens - num_tokens, RowPool(1))
    step.num_tokens, step.num_attended, step.has_decodes = num_tokens, num_attended, has_decodes
    return step


def observe(budget: StepBudget, num_steps: int) -> None:
    for step in range(num_steps):
        num_tokens = 8 + step % 4 * 30
        budget.observe(make_step(budget, num_tokens, 100 * num_tokens), seconds(num_tokens))


def make_budget(max_tokens: int = 512, itl_target: float = 0.05, *, is_known: bool = True) -> StepBudget:
    budget = StepBudget(max_tokens, itl_target)
    if is_known:
        for _ in range(200):  # as in a step: predict, then observe
            budget.cost.predict(1, 1)
            observe(budget, 4)
        budget.counts.num_over_target = 0
    return budget


NUM_DECODES = 8


def chunk(budget: StepBudget, num_left: int = 10_000, num_tokens: int = NUM_DECODES, has_decodes: bool = True) -> int:
    """The chunk of a prompt of `num_left` tokens in a step that already has `num_tokens`, with decodes or without."""
    step = make_step(budget, num_tokens, 100 * num_tokens)
    step.limit_s = limit_s(budget, has_decodes)
    return budget.chunk_size(num_left, 0, step)


def limit_s(budget: StepBudget, has_decodes: bool = True) -> float | None:
    """The time limit of a step with decodes, or without."""
    step = make_step(budget, NUM_DECODES * has_decodes, 100 * NUM_DECODES * has_decodes, has_decodes)
    budget.chunk_size(1, 0, step)
    return step.limit_s


def test_with_decodes_the_step_stays_under_the_target():
    size = chunk(make_budget())
    assert seconds(8 + size) == pytest.approx(0.05, rel=0.05)


def test_brown_out_reduces_the_time_of_chunks():
    budget = make_budget(itl_target=0.1)
    budget.scale = 0.5
    assert seconds(8 + chunk(budget)) == pytest.approx(0.05, rel=0.05)


def test_a_step_without_decodes_may_be_longer():
    assert chunk(make_budget(), num_tokens=0, has_decodes=False) == 512
    size = chunk(make_budget(max_tokens=5000), num_tokens=0, has_decodes=False)
    assert seconds(size) == pytest.approx(ALONE_S, rel=0.05)


def test_without_a_target_only_the_token_budget_limits_chunks():
    assert chunk(make_budget(max_tokens=5000, itl_target=0.0)) == 5000 - 8
    assert chunk(make_budget(itl_target=0.0, is_known=False)) == 512 - 8


def test_first_chunks_are_short_until_the_cost_is_known():
    budget = make_budget(itl_target=10.0, is_known=False)
    for _ in range(8):
        assert chunk(budget) == chunk(budget, has_decodes=False) == FIRST_CHUNK
        observe(budget, 1)
    assert chunk(budget) != FIRST_CHUNK


@pytest.mark.parametrize("itl_target", [0.001, seconds(NUM_DECODES), MIN_STRETCH * seconds(NUM_DECODES)])
def test_prompts_progress_if_decodes_alone_exceed_the_target(itl_target):
    budget = make_budget(itl_target=itl_target)
    size = chunk(budget)
    assert seconds(NUM_DECODES + size) == pytest.approx(MIN_STRETCH * seconds(NUM_DECODES), rel=0.05)


@pytest.mark.parametrize("scale", [0.5, 0.1, 0.0])
def test_prompts_always_keep_a_minimum_share_of_the_time(scale):
    budget = make_budget(itl_target=0.001)
    budget.scale = scale
    decode_s = seconds(NUM_DECODES)
    share_s = seconds(NUM_DECODES + chunk(budget)) - decode_s
    assert share_s >= 0.9 * MIN_SHARE * (decode_s + share_s)


def test_a_step_is_limited_even_if_the_target_allows_more():
    decode_s = seconds(NUM_DECODES)
    for target, expected in ((0.9, 0.9), (1.5, 1.0), (10.0, 4.0)):
        budget = make_budget(itl_target=target * MAX_STRETCH * decode_s)
        assert limit_s(budget) == pytest.approx(expected * MAX_STRETCH * decode_s, rel=0.05)


def test_without_time_left_a_chunk_has_its_minimum_size():
    budget = make_budget()
    for num_left, num_tokens, at_least, expected in (
        (100, 60, 0, 0),
        (100, 60, 16, 16),
        (3, 60, 16, 3),
        (9, 509, 16, 3),
    ):
        step = make_step(budget, num_tokens, 100 * num_tokens)
        step.limit_s = 0.05
        assert budget.chunk_size(num_left, 0, step, at_least) == expected


def test_with_a_target_every_nth_step_is_for_decodes_only():
    for itl_target, expected in ((0.05, 10), (0.0, 0)):
        budget = make_budget(itl_target=itl_target)
        step = make_step(budget, 8, 800)
        assert sum(budget.is_for_decodes(step) for _ in range(10 * DECODE_INTERVAL)) == expected


@given(
    num_left=st.integers(1, 3000),
    start=st.integers(0, 3000),
    num_tokens=st.integers(0, 600),
    num_attended=st.integers(0, 10**6),
    has_decodes=st.booleans(),
    at_least=st.integers(0, 32),
    is_known=st.booleans(),
    itl_target=st.sampled_from([0.0, 0.001, 0.05, 10.0]),
    scale=st.sampled_from([1.0, 0.5]),
)
def test_a_chunk_fits_the_prompt_and_the_budget_and_has_its_minimum_size(
    num_left, start, num_tokens, num_attended, has_decodes, at_least, is_known, itl_target, scale
):
    budget = StepBudget(512, itl_target)
    budget.scale = scale
    if is_known:
        observe(budget, 10)
    size = budget.chunk_size(num_left, start, make_step(budget, num_tokens, num_attended, has_decodes), at_least)
    max_size = max(0, min(num_left, 512 - num_tokens))
    assert min(max_size, at_least) <= size <= max_size


def test_running_out_of_memory_halves_the_tokens_down_to_a_floor():
    budget, tokens = make_budget(), []
    for _ in range(8):
        budget.halve()
        tokens.append(budget.tokens)
    assert tokens == [256, 128, 64, 32, 16, 8, 8, MIN_TOKENS]
    assert chunk(budget, num_tokens=0) == 8
    assert chunk(budget, num_tokens=8) == chunk(budget, num_tokens=9) == 0


def test_a_budget_below_the_floor_is_not_raised_by_halving():
    budget = StepBudget(5, 0.0)
    budget.halve()
    assert budget.tokens == 5


def test_the_tokens_double_after_steps_without_a_fault():
    budget = make_budget(max_tokens=511)
    assert budget.halve() and budget.tokens == 255
    observe(budget, RECOVERY_STEPS - 1)
    assert budget.tokens == 255
    observe(budget, 1)
    assert budget.tokens == 510
    observe(budget, RECOVERY_STEPS)
    assert budget.tokens == 511


def test_each_repeated_lack_of_memory_doubles_the_wait():
    budget = make_budget(max_tokens=512)
    for waits in (1, 2, 4, 8):
        assert budget.halve()
        observe(budget, waits * RECOVERY_STEPS - 1)
        assert budget.tokens == 256
        observe(budget, 1)
        assert budget.tokens == 512


def test_halving_the_smallest_budget_returns_false():
    budget = make_budget(max_tokens=16)
    assert budget.halve() and budget.tokens == 8
    assert not budget.halve() and budget.tokens == 8


def test_another_fault_restarts_the_wait():
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
def test_steps_over_the_target_are_counted_if_they_have_decodes(itl_target, took, had_decodes, counted):
    budget = StepBudget(512, itl_target)
    budget.observe(make_step(budget, 8, 100, had_decodes), took)
    assert budget.counts.num_over_target == counted


def test_brown_out_does_not_change_the_counted_target():
    budget = StepBudget(512, 0.05)
    budget.scale = 0.5
    budget.observe(make_step(budget, 8, 100), 0.04)
    assert budget.counts.num_over_target == 0


# --- Chunks of a scheduler --------------------------------------------------------------------------------------------

COSTS = Costs(per_token=1e-3, per_context=1e-6, per_step=2e-3)


def make_measured_driver(itl_target: float, num_decodes: int = 4, **limits) -> Driver:
    """A driver with known step costs and `num_decodes` decoding requests."""
    driver = Driver(itl_target=itl_target, num_blocks=400, max_num_batched_tokens=256, **limits)
    driver.model = FakeModel(4, COSTS)
    for number in range(num_decodes):
        driver.add(num_prompt=8 + 5 * number, max_tokens=200)
        driver.steps(5)
    assert driver.scheduler.budget.cost.is_known
    return driver


def step_s(driver: Driver) -> float:
    """Run a step; return its duration."""
    driver.launch()
    seconds = driver.in_flight[0][1].duration_s
    driver.finish_step()
    return seconds


@pytest.mark.parametrize("itl_target", [0.03, 0.05, 0.08])
def test_with_decodes_chunks_are_as_long_as_the_target_allows(itl_target):
    driver = make_measured_driver(itl_target)
    known = driver.add(num_prompt=300, max_tokens=1)  # to learn the cost of attended tokens
    driver.run_until(lambda: known.is_finished)
    long, times = driver.add(num_prompt=300), []
    while not long.output_token_ids:
        before = [len(group.open[0].output_token_ids) for group in driver.scheduler.queues.running[:4]]
        has_prompts = (driver.model.num_steps + 1) % DECODE_INTERVAL != 0
        times += [step_s(driver)] * has_prompts
        after = [len(group.open[0].output_token_ids) for group in driver.scheduler.queues.running[:4]]
        assert after == [count + 1 for count in before]  # every decoding sequence gains a token
    assert max(times) <= itl_target * 1.1
    assert min(times[:-1]) >= itl_target * 0.8  # not much shorter, except for the last one


def test_without_a_target_a_chunk_is_as_long_as_the_budget_allows():
    driver = make_measured_driver(itl_target=0.0)
    long = driver.add(num_prompt=600)
    assert new_tokens(driver.step())[long.id] == 256 - 4


def test_prompts_progress_beside_decodes_that_take_all_of_the_target():
    driver = make_measured_driver(itl_target=0.001, num_decodes=8, max_num_seqs=9)
    decode_s, long, times = step_s(driver), driver.add(num_prompt=300), []
    while not long.output_token_ids:
        times.append(step_s(driver))
    assert sum(times) <= 1.2 * 300 * COSTS.per_token / (1 - 1 / MIN_STRETCH) + DECODE_INTERVAL * decode_s
    assert max(times) <= 1.3 * MIN_STRETCH * decode_s


def test_no_group_starts_in_a_step_without_time_left():
    driver = make_measured_driver(itl_target=0.04)
    first, second = driver.add(num_prompt=200), driver.add(num_prompt=20)
    driver.step()
    assert (first.status, second.status) == (RUNNING, WAITING)
    assert second.block_table == []
    driver.run_until(lambda: second.status is RUNNING)


def test_brown_out_makes_chunks_smaller():
    full, half = make_measured_driver(itl_target=0.05), make_measured_driver(itl_target=0.05)
    half.scheduler.budget.scale = 0.5
    sizes = []
    for driver in (full, half):
        long = driver.add(num_prompt=300)
        sizes.append(new_tokens(driver.step())[long.id])
    assert sizes[1] < sizes[0]


def test_a_step_with_prompts_is_short_while_an_account_rests():
    budget, shares = make_measured_driver(itl_target=0.0).scheduler.budget, SeatShares()
    shares.add_seats("crowd", 60)
    shares.add_seats("other", 1)
    budget.rests = Rests(shares)
    budget.rests.observe(0.4, None)
    steps = [make_step(budget, 0, 0, has_decodes=False) for _ in range(2)]
    steps[1].resting = "crowd"
    unlimited, short = (budget.chunk_size(200, 0, step) for step in steps)
    assert unlimited == 200
    assert budget.cost.predict(short, 0) == pytest.approx(PROMPT_STEP_SHARE * 0.4, rel=0.2)
