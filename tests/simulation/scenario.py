"""The scenario of a seed, generated at random: limits, requests and faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from app.engine.schedule.limits import SchedulerLimits
from tests.engine.schedule.fake_model import Costs
from tests.simulation.workload import Arrivals, Mix


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities per step, except for the last three fields.

    `raises`: the step raises when it is launched; `raises_late`: when its result is read. `is_slow`: it takes a
    hundred times as long. `jumps`: the clock jumps ahead by an hour. `interrupts`: a request is aborted, paused or
    resumed between schedule and update. `forgets`: a cached block, or all of them, is evicted early. `is_culprit`: per
    request, that every step with it raises. A step of more than `max_tokens` runs out of memory; the steps with the
    numbers `raises_at` raise.
    """

    raises: float = 0.0
    raises_late: float = 0.0
    is_slow: float = 0.0
    jumps: float = 0.0
    interrupts: float = 0.0
    forgets: float = 0.0
    is_culprit: float = 0.0
    max_tokens: int = 1_000_000
    raises_at: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that a run depends on."""

    seed: int
    limits: SchedulerLimits
    policy: str = "fcfs"
    costs: Costs = field(default_factory=Costs)
    arrivals: Arrivals = field(default_factory=Arrivals)
    mix: Mix = field(default_factory=Mix)
    faults: Faults = field(default_factory=Faults)
    num_pins: int = 0
    has_connector: bool = False


# From this seed on sequences have draft tokens, if the limits allow it.
FIRST_DRAFTING_SEED = 1_000_000
# From this seed on some prompts take many steps, others one or two, and blocks suffice for all.
FIRST_LONG_SEED = 2_000_000


def make_scenario(seed: int) -> Scenario:
    """Return the scenario of `seed`: a small pool, more requests than fit, and in most scenarios faults."""
    rng = Random(f"scenario {seed}")
    limits = make_limits(rng)
    costs = Costs(per_token=1e-3, per_context=rng.choice([0.0, 1e-5]), per_block=1e-4, per_step=5e-3)
    # The slots of the pool divided by the tokens of a request: how many requests can run at once.
    num_slots = limits.num_blocks * limits.block_size
    longest = max(2, min(limits.max_model_len - 1, num_slots))
    mix = make_mix(rng, longest)
    mean_s = 5e-3 * mix.mean_answer / min(limits.max_num_seqs, max(1.0, num_slots / mix.mean_tokens))
    arrivals = Arrivals(
        process=rng.choice(["poisson", "bursty", "trace"]),
        num_requests=rng.choice([8, 16, 24, 32, 48]),
        mean_gap_s=mean_s * rng.choice([0.05, 0.5, 1.0, 2.0]),
    )
    scenario = Scenario(
        seed=seed,
        limits=limits,
        policy=rng.choice(["fcfs", "fcfs", "priority", "sjf", "fair"]),
        costs=costs,
        arrivals=arrivals,
        mix=mix,
        faults=make_faults(rng),
        num_pins=rng.choice([0, 0, 0, 1, 2]),
        has_connector=rng.random() < 0.15,
    )
    if seed >= FIRST_LONG_SEED:
        return add_long_prompts(scenario)
    return add_drafts(scenario) if seed >= FIRST_DRAFTING_SEED else scenario


def add_long_prompts(scenario: Scenario) -> Scenario:
    """Return the scenario with some prompts of a hundred steps each, and enough of everything but time."""
    rng = Random(f"long {scenario.seed}")
    limits = replace(
        scenario.limits,
        num_blocks=rng.choice([256, 512]),
        block_size=8,
        max_num_seqs=rng.choice([4, 8, 16]),
        max_num_batched_tokens=rng.choice([16, 32]),
        max_model_len=2048,
        itl_target=rng.choice([0.0, 0.01, 0.03]),
    )
    mix = replace(
        scenario.mix, longest=1024, mean_prompt=12.0, mean_answer=12.0, is_long=rng.choice([0.1, 0.3]), cancels=0.1
    )
    arrivals = replace(scenario.arrivals, num_requests=24, mean_gap_s=rng.choice([0.02, 0.1]))
    return replace(scenario, limits=limits, mix=mix, arrivals=arrivals, num_pins=0)


def add_drafts(scenario: Scenario) -> Scenario:
    """Return the scenario with draft tokens, and with many requests whose draft tokens are accepted."""
    rng = Random(f"guesses {scenario.seed}")
    limits = replace(scenario.limits, speculative_ngram=rng.choice([1, 2, 4, 8, 64]))
    mix = replace(scenario.mix, repeats=rng.choice([0.3, 0.9]))
    return replace(scenario, limits=limits, mix=mix)


def make_limits(rng: Random) -> SchedulerLimits:
    """Limits with pools of 1 to 64 blocks, mostly tiny ones."""
    num_blocks = rng.choice([rng.randint(1, 8), rng.randint(4, 24), rng.randint(16, 64)])
    return SchedulerLimits(
        num_blocks=num_blocks,
        block_size=rng.choice([1, 2, 4, 4, 8, 16]),
        max_num_seqs=rng.choice([1, 2, 4, 6, 8, 16]),
        max_num_batched_tokens=rng.choice([1, 3, 8, 16, 32, 64]),
        max_model_len=rng.choice([24, 64, 256]),
        run_ahead=rng.choice([0, 0, 0, 1, 2, 3]),
        num_host_blocks=rng.choice([0, 0, rng.randint(1, 8), rng.randint(8, 64)]),
        enable_prefix_caching=rng.random() < 0.7,
        itl_target=rng.choice([0.0, 0.0, 0.012, 0.03]),
    )


def make_mix(rng: Random, longest: int) -> Mix:
    """Lengths up to `longest` tokens, and the probabilities of client behaviours."""
    often = rng.choice([0.0, 0.1, 0.3])
    return Mix(
        longest=longest,
        mean_prompt=rng.uniform(1, longest * 0.6),
        mean_answer=rng.uniform(1, longest * 0.6),
        num_prefixes=rng.choice([1, 2, 4, 100]),
        shares_prefix=rng.choice([0.0, 0.5, 0.9]),
        num_domains=rng.choice([1, 1, 3]),
        parallel=rng.choice([0.0, 0.15, 0.5]),
        beams=rng.choice([0.0, 0.1, 0.3]),
        ends_early=rng.choice([0.0, 0.03]),
        cancels=often,
        reads_slowly=rng.choice([0.0, 0.1, 0.5]),
        has_deadline=rng.choice([0.0, 0.0, 0.3]),
        is_too_long=0.02,
        follows_up=rng.choice([0.0, 0.3]),
    )


def make_faults(rng: Random) -> Faults:
    """No faults in half of the scenarios; only culprits in some."""
    kind = rng.random()
    if kind < 0.5:
        return Faults(interrupts=rng.choice([0.0, 0.05]), forgets=rng.choice([0.0, 0.0, 0.1]))
    if kind < 0.6:
        return Faults(is_culprit=rng.choice([0.03, 0.2]))
    return Faults(
        raises=rng.choice([0.0, 0.01, 0.05]),
        raises_late=rng.choice([0.0, 0.0, 0.02]),
        is_slow=rng.choice([0.0, 0.01]),
        jumps=rng.choice([0.0, 0.002]),
        interrupts=rng.choice([0.0, 0.05, 0.3]),
        is_culprit=rng.choice([0.0, 0.05]),
        max_tokens=rng.choice([1_000_000, 1_000_000, rng.randint(8, 48)]),
    )


def make_crowded_scenario(seed: int) -> Scenario:
    """Return a scenario of `seed` without faults in which three accounts compete for few seats with long outputs."""
    scenario = make_scenario(seed)
    limits = SchedulerLimits(
        num_blocks=256, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256
    )
    mix = Mix(longest=255, mean_answer=200, num_domains=3)
    return Scenario(seed=seed, limits=limits, policy="fair", costs=scenario.costs, arrivals=scenario.arrivals, mix=mix)


def make_resting_scenario(seed: int) -> Scenario:
    """Return a scenario of `seed` with long prompts and three accounts, with step costs that are nearly all per token.

    So the account with the most tokens rests.
    """
    scenario = make_scenario(FIRST_LONG_SEED + seed)
    mix = replace(scenario.mix, num_domains=3, mean_answer=60.0)
    return replace(scenario, policy="fair", costs=scenario.costs._replace(per_step=1e-4), mix=mix)
