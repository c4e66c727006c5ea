"""S6: every waiting request starts eventually, however many requests with a higher priority arrive."""

from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.policy import AGEING_S, SHORTER_S, FairShare, Policy, PriorityWithAgeing, ShortestJobFirst
from app.engine.schedule.sequence import PAUSED, PREEMPTED, RUNNING, WAITING, Sequence
from app.engine.schedule.shares import TURN_STEPS
from tests.cases import examples
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.open_requests import num_open


def flood(driver: Driver, waiting: Sequence, gap_s: float, **favoured: int) -> list[Sequence]:
    """Add a favoured request in each step, more than can run, until `waiting` starts; return the added sequences."""
    added: list[Sequence] = []
    while waiting.status is WAITING:
        added.append(driver.add(num_prompt=2, arrival_time=gap_s * (len(added) + 1), **favoured))
        driver.step()
        assert len(added) < 2_000, "the waiting request starves"
    return added


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_low_priority_request_is_overtaken_for_a_limited_time(run_ahead):
    driver = Driver(policy=PriorityWithAgeing(), max_num_seqs=2, run_ahead=run_ahead)
    low = driver.add(max_tokens=8, arrival_time=0.0, priority=3)
    driver.add(max_tokens=8, arrival_time=-1.0)
    driver.add(max_tokens=8, arrival_time=-1.0)
    added = flood(driver, low, gap_s=1.0, max_tokens=3)
    late = [one for one in added if one.request.arrival_time > 3 * AGEING_S]
    assert late and all(one.status is WAITING for one in late)


def test_a_long_request_is_overtaken_for_a_limited_time():
    driver = Driver(policy=ShortestJobFirst(), max_num_seqs=1)
    driver.add(max_tokens=8, arrival_time=-100.0)
    long = driver.add(max_tokens=64, arrival_time=0.0)
    added = flood(driver, long, gap_s=0.1, max_tokens=2)
    late = [one for one in added if one.request.arrival_time > 64 * SHORTER_S]
    assert late and all(one.status is WAITING for one in late)


def test_one_request_of_an_account_does_not_wait_for_all_of_another():
    driver = Driver(policy=FairShare(), max_num_seqs=1)
    greedy = [driver.add(max_tokens=4, account="greedy") for _ in range(40)]
    driver.steps(6)
    modest = driver.add(max_tokens=4, account="modest")
    driver.run_until(lambda: modest.status is not WAITING)
    assert sum(one.status is not WAITING for one in greedy) <= 3


class Turns:
    """The turns of groups, in steps: those that `ended` for others, and the longest time without a seat."""

    def __init__(self, groups: list[SequenceGroup]) -> None:
        self.ended: list[list[int]] = [[] for _ in groups]
        self.longest_pause = 0
        self._groups = groups
        self._statuses = [group.status for group in groups]
        self._lengths = [0] * len(groups)

    def note(self) -> None:
        """Note what the last step has changed."""
        for index, group in enumerate(self._groups):
            status, before = group.status, self._statuses[index]
            self._statuses[index] = status
            if before is RUNNING and status is PAUSED:
                self.ended[index].append(self._lengths[index])
            self._lengths[index] = self._lengths[index] + 1 if status is before else 1
            if status in (WAITING, PAUSED):
                self.longest_pause = max(self.longest_pause, self._lengths[index])


def hold_all_seats(**limits: float) -> tuple[Driver, list[Sequence]]:
    """A driver in which one account's long requests hold all seats, and more of them wait."""
    driver = Driver(policy=FairShare(), max_num_seqs=4, num_blocks=1000, **limits)
    greedy = [driver.add(max_tokens=500, account="greedy") for _ in range(8)]
    driver.steps(3)
    assert len(driver.scheduler.queues.running) == 4
    return driver, greedy


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_an_account_with_all_seats_gives_one_up_at_once_and_loses_no_work(run_ahead):
    driver, greedy = hold_all_seats(run_ahead=run_ahead)
    modest = driver.add(max_tokens=4, account="modest")
    driver.step()
    assert modest.status is RUNNING
    assert [one.status for one in greedy[:4]] == [RUNNING, RUNNING, RUNNING, PAUSED], (
        "the last one, which keeps its blocks"
    )
    driver.run_until(lambda: modest.is_finished)
    driver.steps(2 + run_ahead)
    assert greedy[3].status is RUNNING
    scheduler = driver.scheduler
    assert scheduler.preemption.counts.num_preemptions == scheduler.planner.starts.counts.num_lost_tokens == 0


def test_two_greedy_accounts_reach_equal_seats_and_keep_them():
    driver, greedy = hold_all_seats()
    others = [driver.add(max_tokens=500, account="other") for _ in range(8)]
    driver.steps(4)
    for _ in range(50):
        before = [one.status for one in (*greedy, *others)]
        assert before.count(RUNNING) == 4
        assert [one.status for one in others].count(RUNNING) == 2
        driver.step()
        assert before == [one.status for one in (*greedy, *others)], "a seat moves back and forth"


def test_many_short_requests_do_not_stop_the_account_that_gives_a_seat():
    driver, greedy = hold_all_seats()
    for _ in range(30):
        modest = driver.add(max_tokens=2, account="modest")
        driver.run_until(lambda one=modest: one.is_finished)
    assert all(len(one.output_token_ids) >= 60 for one in greedy[:3])
    assert driver.scheduler.preemption.counts.num_preemptions == 0


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_groups_give_way_in_turn_to_one_chat_after_the_other(run_ahead):
    """Each keeps its seats for some steps, and none falls behind the others."""
    driver = Driver(policy=FairShare(), max_num_seqs=8, num_blocks=2000, run_ahead=run_ahead)
    wide = [driver.add(account=account, n=2, max_tokens=500).group for account in "abcd"]
    chat, turns = driver.add(account="chat", max_tokens=12), Turns(wide)
    for _ in range(400):
        if chat.is_finished:
            chat = driver.add(account="chat", max_tokens=12)
        driver.step()
        turns.note()
    assert min(map(len, turns.ended)) >= 3 and min(map(min, turns.ended)) >= TURN_STEPS
    lengths = [len(group.open[0].output_token_ids) for group in wide]
    assert max(lengths) - min(lengths) <= 2 * TURN_STEPS
    assert driver.scheduler.preemption.counts.num_preemptions == 0


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_group_that_gave_way_to_a_long_answer_takes_turns_with_the_others(run_ahead):
    driver = Driver(policy=FairShare(), max_num_seqs=8, num_blocks=4000, run_ahead=run_ahead)
    wide = [driver.add(account=account, n=2, max_tokens=400).group for account in "abcd"]
    long, turns = driver.add(account="e", max_tokens=400), Turns(wide)
    for _ in range(400):
        driver.step()
        turns.note()
    assert len(long.output_token_ids) >= 400 - TURN_STEPS - 4, "an answer with one seat keeps it"
    assert min(map(min, turns.ended)) >= TURN_STEPS and turns.longest_pause <= 2 * TURN_STEPS
    driver.run(max_steps=300)


@settings(max_examples=examples(12))
@given(
    widths=st.lists(st.integers(2, 8), min_size=2, max_size=6),
    num_seats=st.integers(8, 16),
    run_ahead=st.integers(0, 2),
)
@example(widths=[6, 5, 5], num_seats=8, run_ahead=0)  # by tokens the first waited for four turns of the others
@example(widths=[8, 4, 4], num_seats=8, run_ahead=1)  # and for their ends, since it wants the seats of both
def test_each_of_any_number_of_groups_has_its_turn(widths, num_seats, run_ahead):
    driver = Driver(policy=FairShare(), max_num_seqs=num_seats, num_blocks=4000, run_ahead=run_ahead)
    groups = [driver.add(account=f"{number}", n=n, max_tokens=70).group for number, n in enumerate(widths)]
    turns = Turns(groups)
    for _ in range(80 * len(groups)):
        driver.step()
        turns.note()
    assert not num_open(driver.scheduler)
    assert min(chain.from_iterable(turns.ended), default=TURN_STEPS) >= TURN_STEPS
    assert turns.longest_pause <= TURN_STEPS * (len(groups) - 1), "a turn of each other group"


def test_an_account_with_all_blocks_gives_up_only_as_many_as_needed():
    driver = Driver(policy=FairShare(), max_num_seqs=8, num_blocks=40, max_num_batched_tokens=256)
    greedy = [driver.add(num_prompt=33, max_tokens=20, account="greedy") for _ in range(4)]
    driver.steps(2)
    assert [one.status for one in greedy] == [RUNNING] * 4 and driver.scheduler.tables.pool.num_free < 5
    modest = driver.add(num_prompt=17, max_tokens=4, account="modest")
    driver.steps(3)
    assert modest.status is RUNNING
    assert [one.status for one in greedy] == [RUNNING, RUNNING, RUNNING, PREEMPTED]
    assert driver.scheduler.preemption.counts.num_preemptions == 1
    driver.run(max_steps=100)


def test_one_account_is_served_in_the_order_of_arrival():
    orders = []
    for policy in (FairShare(), Policy()):
        driver = Driver(policy=policy, max_num_seqs=2, num_blocks=24)
        for number in range(20):
            driver.add(num_prompt=1 + number * 7 % 11, max_tokens=1 + number * 5 % 13)
        driver.run(max_steps=400)
        orders.append([one.request.id for one in driver.finished])
    assert orders[0] == orders[1]
