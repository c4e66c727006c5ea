"""An account with 63 decoding requests beside another account's long prompt, in virtual time."""

from itertools import pairwise, takewhile

import pytest

from app.engine.schedule.step_budget import DECODE_INTERVAL, MIN_STRETCH
from app.engine.schedule.step_plan import StepPlan
from tests.simulation.machines import CPU_INT4, GPU, MACHINES, TARGET_S
from tests.simulation.prompt_time import StepCosts, TimedScheduler

NUM_DECODING, LONG = 63, 250_000  # one seat is left for the other account


def crowd(costs: StepCosts, max_tokens: int, policy: str = "fair") -> TimedScheduler:
    """Return a scheduler that has learned the costs and decodes a batch of one account."""
    timed = TimedScheduler(costs, TARGET_S, max_tokens, policy)
    for num_prompt in (300, 40, 700):
        timed.run_clients(2, num_prompt, 12)
    timed.run(*(timed.add(f"decode {number}", 32, 20_000, "crowd") for number in range(NUM_DECODING)))
    return timed


def longest_gap(timed: TimedScheduler) -> float:
    """The longest time between two of the last 400 tokens of one of the crowd's requests."""
    return max(timed.times["decode 7"].gaps[-400:])


def has_crowd(timed: TimedScheduler, plan: StepPlan) -> bool:
    """Whether the step has a token of the account `crowd`."""
    groups = (group for group in timed.scheduler.queues.running if group.account == "crowd")
    return not {chunk.sequence_id for chunk in plan.chunks}.isdisjoint(one.id for group in groups for one in group.open)


@MACHINES
def test_a_long_prompt_of_another_account_delays_no_more_than_one_of_the_same(costs, max_tokens):
    gaps = []
    for account in ("crowd", "other"):
        timed = crowd(costs, max_tokens)
        long = timed.add("long", LONG, 1, account)
        plans = [timed.step() for _ in range(400)]
        assert all(has_crowd(timed, plan) for plan in plans)  # an account with only a prompt lets no other rest
        assert not long.tokens and sum(plan.num_prompt_tokens > 0 for plan in plans) >= 0.9 * len(plans)
        gaps.append(longest_gap(timed))
    assert gaps[1] <= 1.1 * gaps[0]


def test_a_long_prompt_is_as_fast_under_fair_as_under_fcfs():
    seconds = []
    for policy in ("fcfs", "fair"):
        timed = crowd(GPU, 2048, policy)
        long = timed.add("long", LONG, 1, "other")
        timed.run(long)
        seconds.append(long.to_first)
    assert seconds[1] <= 1.1 * seconds[0]


@pytest.fixture
def with_rests() -> TimedScheduler:
    """A full batch that sometimes rests for the one decoding request of another account with a long prompt."""
    timed = crowd(CPU_INT4, 512)
    timed.scheduler.abort("decode 0")
    timed.run(timed.add("other's decode", 32, 2_000, "other"))
    timed.add("long", LONG, 1, "other")
    return timed


def test_with_rests_both_a_long_prompt_and_the_other_account_progress(with_rests):
    plans = [(has_crowd(with_rests, plan), plan) for plan in (with_rests.step() for _ in range(1000))]
    joint = [plan for has_tokens, plan in plans if has_tokens]
    resting = [plan for has_tokens, plan in plans if not has_tokens]
    assert joint and resting
    assert sum(plan.num_prompt_tokens > 0 for plan in joint) >= 0.9 * len(joint)
    decode_s = CPU_INT4.seconds(64, 64 * 2000)
    assert longest_gap(with_rests) <= 2.2 * MIN_STRETCH * decode_s  # a step, and a rest of the same length


def test_steps_for_decodes_alone_are_counted_without_rests(with_rests):
    plans = [(has_crowd(with_rests, plan), plan) for plan in (with_rests.step() for _ in range(1000))]
    joint = [plan for has_tokens, plan in plans if has_tokens]
    alone = [number for number, plan in enumerate(joint) if not plan.num_prompt_tokens]
    assert {later - earlier for earlier, later in pairwise(alone)} == {DECODE_INTERVAL}


def test_rests_end_with_the_other_accounts_decode(with_rests):
    while any(has_crowd(with_rests, with_rests.step()) for _ in range(3)):
        continue
    with_rests.scheduler.abort("other's decode")
    assert (
        len(list(takewhile(lambda plan: has_crowd(with_rests, plan), (with_rests.step() for _ in range(100))))) == 100
    )
