"""An account with 64 answers and another one's long prompt, in virtual time: neither holds the other up."""

from itertools import pairwise, takewhile

import pytest

from app.engine.schedule.step_budget import DECODE_INTERVAL, MIN_STRETCH
from app.engine.schedule.step_plan import StepPlan
from tests.simulation.prompt_time import StepCosts, TimedScheduler
from tests.simulation.test_prompt_time import CPU_INT4, GPU, MACHINES, TARGET_S

NUM_ANSWERS, LONG = 63, 250_000  # one seat is the other account's


def crowd(costs: StepCosts, max_tokens: int, policy: str = "fair") -> TimedScheduler:
    """Return a scheduler that knows the costs and writes a full batch of one account's answers."""
    timed = TimedScheduler(costs, TARGET_S, max_tokens, policy)
    for num_prompt in (300, 40, 700):
        timed.answer(2, num_prompt, 12)
    timed.run(*(timed.add(f"answer {number}", 32, 20_000, "crowd") for number in range(NUM_ANSWERS)))
    return timed


def longest_gap(timed: TimedScheduler) -> float:
    """The longest time between two tokens of one of the crowd's answers, of the last hundreds."""
    return max(timed.times["answer 7"].gaps[-400:])


def crowds_part(timed: TimedScheduler, plan: StepPlan) -> bool:
    """Whether the step has a token of the crowd's answers."""
    groups = (group for group in timed.scheduler.queues.running if group.account == "crowd")
    return not {chunk.sequence_id for chunk in plan.chunks}.isdisjoint(one.id for group in groups for one in group.open)


@MACHINES
def test_a_long_prompt_of_another_account_makes_nobody_wait_longer_than_one_of_their_own(costs, max_tokens):
    gaps = []
    for account in ("crowd", "other"):
        timed = crowd(costs, max_tokens)
        long = timed.add("long", LONG, 1, account)
        plans = [timed.step() for _ in range(400)]
        assert all(crowds_part(timed, plan) for plan in plans)  # who has but a prompt lets nobody rest
        assert not long.tokens and sum(plan.num_prompt_tokens > 0 for plan in plans) >= 0.9 * len(plans)
        gaps.append(longest_gap(timed))
    assert gaps[1] <= 1.1 * gaps[0]


def test_the_long_prompt_ends_as_soon_as_in_an_account_of_its_own():
    seconds = []
    for policy in ("fcfs", "fair"):
        timed = crowd(GPU, 2048, policy)
        long = timed.add("long", LONG, 1, "other")
        timed.run(long)
        seconds.append(long.to_first)
    assert seconds[1] <= 1.1 * seconds[0]


@pytest.fixture
def meeting() -> TimedScheduler:
    """A full batch that rests now and then for the one answer of another account, which has a long prompt too."""
    timed = crowd(CPU_INT4, 512)
    timed.scheduler.abort("answer 0")
    timed.run(timed.add("other's answer", 32, 2_000, "other"))
    timed.add("long", LONG, 1, "other")
    return timed


def test_beside_rests_a_long_prompt_gets_on_and_the_crowd_is_not_kept_waiting(meeting):
    plans = [(crowds_part(meeting, plan), plan) for plan in (meeting.step() for _ in range(1000))]
    joint = [plan for has_part, plan in plans if has_part]
    resting = [plan for has_part, plan in plans if not has_part]
    assert joint and resting
    assert sum(plan.num_prompt_tokens > 0 for plan in joint) >= 0.9 * len(joint)
    decode_s = CPU_INT4.seconds(64, 64 * 2000)
    assert longest_gap(meeting) <= 2.2 * MIN_STRETCH * decode_s  # a step, and a rest as long as that


def test_steps_for_decodes_alone_are_those_that_nobody_sits_out(meeting):
    plans = [(crowds_part(meeting, plan), plan) for plan in (meeting.step() for _ in range(1000))]
    joint = [plan for has_part, plan in plans if has_part]
    alone = [number for number, plan in enumerate(joint) if not plan.num_prompt_tokens]
    assert {later - earlier for earlier, later in pairwise(alone)} == {DECODE_INTERVAL}


def test_rests_end_with_the_other_accounts_answer(meeting):
    while any(crowds_part(meeting, meeting.step()) for _ in range(3)):
        continue
    meeting.scheduler.abort("other's answer")
    assert len(list(takewhile(lambda plan: crowds_part(meeting, plan), (meeting.step() for _ in range(100))))) == 100
