"""The scheduler in simulated runs: random seeds, seeds that once failed, and repeated runs."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases import long
from tests.simulation.scenario import (
    FIRST_DRAFTING_SEED,
    FIRST_LONG_SEED,
    Faults,
    make_crowded_scenario,
    make_resting_scenario,
    make_scenario,
)
from tests.simulation.seeds import KEPT
from tests.simulation.simulation import run_scenario, run_seed

ROOT = Path(__file__).resolve().parents[2]
NUM_BATCHES, STEPS_PER_BATCH, STEPS_OF_FIRST_BATCH = 6, 20_000, 4_500
# Events that must occur in each batch of seeds, or the simulator does not test them.
EVENTS = (
    *("cancelled", "copies", "deadline_exceeded", "ended", "failed", "faults", "hits", "pauses", "preemptions"),
    *("queue_timeout", "rejected", "swap_ins", "swap_outs", "swaps"),
)
SEATS_TAKEN = (10, 13, 16)  # among these seeds are those where seats must be taken from an account
OTHER_FAULTS = (*range(2, 12, 2), *(number for number in range(12, 200, 17) if (number - 12) % 51))  # in `test-long`
DRAFT_EVENTS = ("draft_tokens", "accepted_tokens")


@pytest.mark.parametrize("first", [0, FIRST_DRAFTING_SEED], ids=["plain", "drafts"])
@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(batch, marks=pytest.mark.long) for batch in range(1, NUM_BATCHES))]
)
def test_no_seed_violates_a_rule(batch, first):
    """Over 200,000 steps in all batches together, every rule of `invariants` after each."""
    counts: Counter[str] = Counter()
    num_steps, seed = 0, first + 1000 * batch
    while num_steps < (STEPS_PER_BATCH if batch else STEPS_OF_FIRST_BATCH):
        simulation = run_seed(seed)
        counts += simulation.counts
        num_steps += simulation.num_steps
        seed += 1
    assert not [event for event in (*EVENTS, *(DRAFT_EVENTS if first else ())) if not counts[event]]


@pytest.mark.parametrize("first", [0, *map(long, range(1, 6))])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair"])
def test_no_prompt_waits_longer_than_the_limit(policy, first):
    """S14 with prompts of a hundred steps among short ones, and enough of everything but time."""
    run_scenario(replace(make_scenario(FIRST_LONG_SEED + first), policy=policy))


@pytest.mark.parametrize("seed", KEPT, ids=lambda seed: f"{seed}: {KEPT[seed]}")
def test_a_seed_that_once_failed_does_not_fail_again(seed):
    run_seed(seed)


def test_a_seed_plans_the_same_steps_in_every_process():
    """S13: nothing depends on hash seeds, addresses or the real clock."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", "40", "--steps", "1500"]
    runs = [
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    traces = [run.partition("trace ")[2].split()[0] for run in runs]
    assert traces[0] == traces[1] and int(traces[0], 16)


@pytest.mark.parametrize("number", [*range(1, 12, 2), *range(12, 200, 51), *map(long, OTHER_FAULTS)])
def test_a_fault_in_any_step_changes_no_output(number):
    """With two steps in flight, swaps, forks and beams: one step raises, all requests continue and none fails."""
    scenario = replace(make_scenario(2528), faults=Faults(raises_at=frozenset({number})))
    counts = run_scenario(scenario).counts
    assert counts["faults"] == 1 and not counts["failed"]


@pytest.mark.parametrize("most", [200, pytest.param(2_000, marks=pytest.mark.long)])
def test_aborts_leave_nothing_behind(most):
    """At any time: queued, during a prompt, between schedule and update, paused, preempted, swapped."""
    num_aborts, seed = 0, 0
    while num_aborts < most:
        scenario = make_scenario(seed)
        arrivals = replace(scenario.arrivals, num_requests=200)
        mix = replace(scenario.mix, cancels=1.0)
        simulation = run_scenario(replace(scenario, arrivals=arrivals, mix=mix, faults=Faults(interrupts=0.5)))
        num_aborts += simulation.counts["cancelled"]
        seed += 1


@pytest.mark.parametrize(
    "seed", [seed if seed in SEATS_TAKEN else pytest.param(seed, marks=pytest.mark.long) for seed in range(20)]
)
def test_no_account_keeps_all_seats(seed):
    """S12, with long outputs and few seats."""
    assert run_scenario(make_crowded_scenario(seed)).counts["ended"]


@pytest.mark.parametrize("seed", [*range(3), *map(long, range(3, 12))])
def test_no_account_rests_longer_than_the_limit(seed):
    """S14, with accounts that rest."""
    assert run_scenario(make_resting_scenario(seed)).counts["ended"]


def test_two_seeds_plan_different_steps():
    assert run_seed(1).trace.value != run_seed(2).trace.value
