"""The online cost model: what it learns, which times it ignores, and how large a chunk it allows."""

import random
from collections.abc import Callable
from math import nextafter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.schedule.step_cost import StepCost

DECODES = 8


class Machine(NamedTuple):
    """The truth that is to be learned."""

    per_token: float = 3e-4
    per_attended: float = 2e-7
    constant: float = 0.012

    def seconds(self, num_tokens: int, num_attended: int) -> float:
        return self.per_token * num_tokens + self.per_attended * num_attended + self.constant


SLOW_CPU, FAST_CPU, GPU = Machine(1e-3, 5e-7, 0.005), Machine(), Machine(3e-6, 2e-9, 0.005)


def decoding(rng: random.Random) -> tuple[int, int]:
    """A step of decodes alone: its tokens, and what they attend to."""
    return DECODES, DECODES * rng.randrange(100, 1000)


def mixed(rng: random.Random) -> tuple[int, int]:
    """A step of decodes, half of the time with a chunk of a prompt."""
    num_tokens, num_attended = decoding(rng)
    if rng.random() < 0.5:
        return num_tokens, num_attended
    chunk, start = rng.randrange(16, 256), rng.randrange(1000)
    return num_tokens + chunk, num_attended + chunk * start + chunk * (chunk + 1) // 2


def jitter(rng: random.Random) -> float:
    return rng.lognormvariate(0, 0.05)


def run(
    cost: StepCost,
    machine: Machine,
    num_steps: int,
    *,
    kind: Callable[[random.Random], tuple[int, int]] = mixed,
    noise: Callable[[random.Random], float] = lambda rng: 1.0,
    is_asked: bool = True,
    seed: int = 0,
) -> None:
    rng = random.Random(seed)
    for _ in range(num_steps):
        step = kind(rng)
        if is_asked:
            cost.predict(*step)
        cost.observe(*step, machine.seconds(*step) * noise(rng))


def learned(machine: Machine, num_steps: int = 100, **how) -> StepCost:
    cost = StepCost()
    run(cost, machine, num_steps, **how)
    return cost


def off_by(cost: StepCost, machine: Machine, num_tokens: int = 108, num_attended: int = 30_000) -> float:
    return cost.predict(num_tokens, num_attended) / machine.seconds(num_tokens, num_attended)


def test_it_is_not_known_before_a_few_steps_were_seen():
    cost = StepCost()
    assert not cost.is_known and cost.predict(100, 100) == 0.0
    run(cost, FAST_CPU, 7)
    assert not cost.is_known
    run(cost, FAST_CPU, 1)
    assert cost.is_known


def test_steps_that_nobody_measured_teach_nothing():
    cost = StepCost()
    for _ in range(20):
        cost.observe(8, 100, 0.0)
    assert not cost.is_known


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU, Machine(0.0, 1e-6, 0.01), Machine(1e-3, 0.0, 0.0)])
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked each step", "asked once"])
def test_it_learns_the_law_exactly_where_there_is_no_noise(machine: Machine, is_asked: bool):
    cost = learned(machine, 200, is_asked=is_asked)
    if not is_asked:
        for _ in range(50):  # each fit starts from the last one
            cost.predict(1, 1)
            run(cost, machine, 1, seed=cost.num_steps)
    for num_tokens, num_attended in ((1, 1), (8, 4000), (64, 64_000), (500, 10_000)):
        assert off_by(cost, machine, num_tokens, num_attended) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU])
def test_the_first_fit_is_a_good_one_however_late_it_is_made(machine: Machine):
    cost = learned(machine, 1000, is_asked=False)
    for num_tokens, num_attended in ((8, 4000), (64, 64_000), (500, 10_000)):
        assert off_by(cost, machine, num_tokens, num_attended) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU, GPU])
def test_noise_is_averaged_out(machine: Machine):
    cost = learned(machine, 300, noise=lambda rng: rng.lognormvariate(0, 0.1))
    assert off_by(cost, machine) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("factor", [100.0, 10_000.0])
def test_one_held_up_step_hardly_matters(factor: float):
    cost = learned(FAST_CPU, 100)
    run(cost, FAST_CPU, 1, noise=lambda rng: factor)
    assert off_by(cost, FAST_CPU) == pytest.approx(1.0, rel=0.25)
    run(cost, FAST_CPU, 30)
    assert off_by(cost, FAST_CPU) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("kind", [mixed, decoding])
def test_a_lasting_change_is_followed_within_50_steps(factor: float, kind: Callable):
    cost, changed = learned(FAST_CPU, 200), Machine(*(factor * part for part in FAST_CPU))
    run(cost, changed, 50, kind=kind)
    assert off_by(cost, changed, DECODES, DECODES * 500) == pytest.approx(1.0, rel=0.2)


def test_a_change_that_nobody_asked_about_is_followed_too():
    cost, changed = learned(FAST_CPU, 200), Machine(*(5 * part for part in FAST_CPU))
    run(cost, changed, 200, kind=decoding, is_asked=False)
    run(cost, changed, 5)
    assert off_by(cost, changed) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU])
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked each step", "asked once"])
def test_what_a_prompt_costs_is_not_forgotten_while_decodes_run_alone(machine: Machine, is_asked: bool):
    cost = learned(machine, 100)
    num_steps = 100 if is_asked else 5000  # each fit wanders a little where the data leave it free
    run(cost, machine, num_steps, kind=decoding, noise=jitter, is_asked=is_asked)
    assert 0.6 < off_by(cost, machine) < 1.7


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_grow_evenly_leave_what_a_prompt_costs_as_it_was(seed: int):
    """Nearly equal steps: what they take and what they attend to go up together by less than the noise."""
    cost = learned(SLOW_CPU, 100)
    contexts = iter(range(500, 600))
    run(cost, SLOW_CPU, 100, kind=lambda rng: (DECODES, DECODES * next(contexts)), noise=jitter, seed=seed)
    assert off_by(cost, SLOW_CPU) == pytest.approx(1.0, rel=0.04)


def test_before_any_prompt_was_seen_one_is_expected_to_be_dear():
    cost = learned(FAST_CPU, 50, kind=decoding)
    assert off_by(cost, FAST_CPU) > 1.0


@given(
    seed=st.integers(0, 10_000),
    steps=st.lists(
        st.tuples(st.integers(1, 2000), st.integers(0, 10**8), st.floats(1e-6, 100.0)), min_size=1, max_size=60
    ),
)
def test_predictions_are_never_negative_and_grow_with_the_step(seed, steps):
    cost, rng = StepCost(), random.Random(seed)
    for num_tokens, num_attended, seconds in steps:
        cost.observe(num_tokens, num_attended, seconds)
        if rng.random() < 0.5:
            cost.predict(1, 1)
    small = cost.predict(10, 1000)
    assert 0.0 <= small <= cost.predict(11, 1000) <= cost.predict(11, 1001) < float("inf")


# --- The largest chunk ------------------------------------------------------------------------------------------


@given(
    machine=st.builds(
        Machine,
        per_token=st.one_of(st.just(0.0), st.floats(1e-7, 1e-2)),
        per_attended=st.one_of(st.just(0.0), st.floats(1e-10, 1e-5)),
        constant=st.floats(1e-5, 0.1),
    ),
    budget_s=st.floats(1e-4, 2.0),
    num_tokens=st.integers(0, 300),
    num_attended=st.integers(0, 300_000),
    start=st.integers(0, 100_000),
    limit=st.integers(1, 5000),
)
def test_the_chunk_is_the_largest_that_is_predicted_to_fit(machine, budget_s, num_tokens, num_attended, start, limit):
    cost = learned(machine, 40)

    def takes(n: int) -> float:
        return cost.predict(num_tokens + n, num_attended + sum(start + k for k in range(1, n + 1)))

    most = cost.most_tokens(budget_s, num_tokens, num_attended, start, limit)
    assert 0 <= most <= limit
    assert most == 0 or takes(most) <= budget_s
    assert most == limit or takes(most + 1) > budget_s


@pytest.mark.parametrize("machine", [FAST_CPU, GPU, Machine(1e-3, 0.0, 0.0)])
def test_a_budget_that_fits_exactly_is_used_up_and_one_bit_less_is_not_exceeded(machine: Machine):
    cost = learned(machine)
    for n in range(1, 500):
        exact = cost.predict(8 + n, 4000 + n * 300 + n * (n + 1) // 2)
        assert cost.most_tokens(exact, 8, 4000, 300, 1000) == n
        assert cost.most_tokens(nextafter(exact, 0.0), 8, 4000, 300, 1000) == n - 1


def test_a_step_that_is_over_budget_already_has_no_room():
    cost = learned(FAST_CPU)
    assert cost.most_tokens(0.01, 8, 4000, 0, 100) == 0


def test_later_chunks_of_a_long_prompt_are_smaller():
    cost = learned(FAST_CPU)
    sizes = [cost.most_tokens(0.05, 8, 4000, start, 1000) for start in (0, 1000, 10_000)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 1.5 * sizes[-1] > 0
