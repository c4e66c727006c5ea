"""The online cost model: what it learns, which durations it ignores, and the chunk sizes it allows."""

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
    """The actual costs, which the model has to learn; with `experts`, of which a token reads one in `one_in`."""

    per_token: float = 3e-4
    per_attended: float = 2e-7
    all_weights: float = 0.012
    experts: float = 0.0
    one_in: int = 1

    def seconds(self, num_tokens: int, num_attended: int) -> float:
        read = 1.0 - self.experts * (1.0 - 1.0 / self.one_in) ** num_tokens
        return self.per_token * num_tokens + self.per_attended * num_attended + self.all_weights * read


# As 48 layers of Qwen3-30B-A3B on a CPU: a token reads 8 of 128 experts.
EXPERTS = Machine(5e-4, 2e-7, 0.4, experts=0.95, one_in=16)
SLOW_CPU, FAST_CPU, GPU = Machine(1e-3, 5e-7, 0.005), Machine(), Machine(3e-6, 2e-9, 0.005)


def decoding(rng: random.Random) -> tuple[int, int]:
    """A step with only decodes: its tokens, and the tokens that they attend to."""
    return DECODES, DECODES * rng.randrange(100, 1000)


def mixed(rng: random.Random) -> tuple[int, int]:
    """A step with decodes and, in half of the cases, a chunk of a prompt."""
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
    predicts: bool = True,
    seed: int = 0,
) -> None:
    rng = random.Random(seed)
    for _ in range(num_steps):
        step = kind(rng)
        if predicts:
            cost.predict(*step)
        cost.observe(*step, machine.seconds(*step) * noise(rng))


def learned(machine: Machine, num_steps: int = 100, **how) -> StepCost:
    cost = StepCost(machine.experts, 1.0 / machine.one_in)
    run(cost, machine, num_steps, **how)
    return cost


def relative_prediction(cost: StepCost, machine: Machine, num_tokens: int = 108, num_attended: int = 30_000) -> float:
    return cost.predict(num_tokens, num_attended) / machine.seconds(num_tokens, num_attended)


def test_the_cost_is_known_after_eight_steps():
    cost = StepCost()
    assert not cost.is_known and cost.predict(100, 100) == 0.0
    run(cost, FAST_CPU, 7)
    assert not cost.is_known
    run(cost, FAST_CPU, 1)
    assert cost.is_known


def test_steps_without_a_duration_are_ignored():
    cost = StepCost()
    for _ in range(20):
        cost.observe(8, 100, 0.0)
    assert not cost.is_known


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU, EXPERTS, Machine(0.0, 1e-6, 0.01), Machine(1e-3, 0.0, 0.0)])
@pytest.mark.parametrize("predicts", [True, False], ids=["predicted each step", "predicted once"])
def test_costs_without_noise_are_learned_exactly(machine: Machine, predicts: bool):
    cost = learned(machine, 200, predicts=predicts)
    if not predicts:
        for _ in range(50):  # each fit starts from the last one
            cost.predict(1, 1)
            run(cost, machine, 1, seed=cost.num_steps)
    for num_tokens, num_attended in ((1, 1), (8, 4000), (64, 64_000), (500, 10_000)):
        assert relative_prediction(cost, machine, num_tokens, num_attended) == pytest.approx(1.0, rel=0.05)


def batches(rng: random.Random) -> tuple[int, int]:
    """A step with 1 to 32 decodes."""
    num_tokens = rng.randrange(1, 33)
    return num_tokens, num_tokens * rng.randrange(100, 1000)


def test_the_experts_that_a_step_reads_are_counted():
    known = learned(EXPERTS, 200, kind=batches)
    plain = StepCost()
    run(plain, EXPERTS, 200, kind=batches)
    # A prompt of 512 tokens reads every expert, as 32 decodes nearly do, and not 16 times as many.
    steps = [(1, 500), (8, 4000), (32, 16_000), (512, 131_000)]
    assert all(relative_prediction(known, EXPERTS, *step) == pytest.approx(1.0, rel=0.15) for step in steps)
    assert relative_prediction(plain, EXPERTS, 512, 131_000) > 2.0


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU])
def test_a_late_first_fit_is_good(machine: Machine):
    cost = learned(machine, 1000, predicts=False)
    for num_tokens, num_attended in ((8, 4000), (64, 64_000), (500, 10_000)):
        assert relative_prediction(cost, machine, num_tokens, num_attended) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU, GPU])
def test_noise_is_averaged_out(machine: Machine):
    cost = learned(machine, 300, noise=lambda rng: rng.lognormvariate(0, 0.1))
    assert relative_prediction(cost, machine) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("factor", [100.0, 10_000.0])
def test_one_very_slow_step_hardly_changes_the_prediction(factor: float):
    cost = learned(FAST_CPU, 100)
    run(cost, FAST_CPU, 1, noise=lambda rng: factor)
    assert relative_prediction(cost, FAST_CPU) == pytest.approx(1.0, rel=0.25)
    run(cost, FAST_CPU, 30)
    assert relative_prediction(cost, FAST_CPU) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("kind", [mixed, decoding])
def test_a_lasting_change_is_followed_within_50_steps(factor: float, kind: Callable):
    cost, changed = learned(FAST_CPU, 200), Machine(*(factor * part for part in FAST_CPU[:3]))
    run(cost, changed, 50, kind=kind)
    assert relative_prediction(cost, changed, DECODES, DECODES * 500) == pytest.approx(1.0, rel=0.2)


def test_a_change_is_followed_without_predictions_in_between():
    cost, changed = learned(FAST_CPU, 200), Machine(*(5 * part for part in FAST_CPU[:3]))
    run(cost, changed, 200, kind=decoding, predicts=False)
    run(cost, changed, 5)
    assert relative_prediction(cost, changed) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("machine", [SLOW_CPU, FAST_CPU])
@pytest.mark.parametrize("predicts", [True, False], ids=["predicted each step", "predicted once"])
def test_the_cost_of_prompts_is_kept_while_only_decodes_run(machine: Machine, predicts: bool):
    cost = learned(machine, 100)
    num_steps = 100 if predicts else 5000  # each fit drifts a little if the data do not determine it
    run(cost, machine, num_steps, kind=decoding, noise=jitter, predicts=predicts)
    assert 0.6 < relative_prediction(cost, machine) < 1.7


@pytest.mark.parametrize("seed", range(5))
def test_slowly_growing_decodes_do_not_change_the_cost_of_prompts(seed: int):
    """Nearly equal steps: duration and attended tokens grow together by less than the noise."""
    cost = learned(SLOW_CPU, 100)
    contexts = iter(range(500, 600))
    run(cost, SLOW_CPU, 100, kind=lambda rng: (DECODES, DECODES * next(contexts)), noise=jitter, seed=seed)
    assert relative_prediction(cost, SLOW_CPU) == pytest.approx(1.0, rel=0.04)


def test_without_observed_prompts_their_predicted_cost_is_high():
    cost = learned(FAST_CPU, 50, kind=decoding)
    assert relative_prediction(cost, FAST_CPU) > 1.0


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
        all_weights=st.floats(1e-5, 0.1),
        experts=st.sampled_from([0.0, 0.95]),
        one_in=st.sampled_from([2, 16]),
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


@pytest.mark.parametrize("machine", [FAST_CPU, GPU, EXPERTS, Machine(1e-3, 0.0, 0.0)])
def test_the_largest_chunk_is_exact_to_one_bit_of_the_budget(machine: Machine):
    cost = learned(machine)
    for n in range(1, 500):
        exact = cost.predict(8 + n, 4000 + n * 300 + n * (n + 1) // 2)
        assert cost.most_tokens(exact, 8, 4000, 300, 1000) == n
        assert cost.most_tokens(nextafter(exact, 0.0), 8, 4000, 300, 1000) == n - 1


def test_a_step_over_its_budget_has_no_chunk():
    cost = learned(FAST_CPU)
    assert cost.most_tokens(0.01, 8, 4000, 0, 100) == 0


def test_later_chunks_of_a_long_prompt_are_smaller():
    cost = learned(FAST_CPU)
    sizes = [cost.most_tokens(0.05, 8, 4000, start, 1000) for start in (0, 1000, 10_000)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 1.5 * sizes[-1] > 0
