"""S6: whoever waits gets a turn, however many others come that the policy likes better."""

import pytest

from app.engine.schedule.policy import AGEING_S, SHORTER_S, FairShare, PriorityWithAgeing, ShortestJobFirst
from app.engine.schedule.sequence import WAITING, Sequence
from tests.engine.schedule.fake_model import Driver


def flood(driver: Driver, loser: Sequence, gap_s: float, **favoured: int) -> list[Sequence]:
    """One favoured request comes with each step, more than can be served, until `loser` starts; return who came."""
    came: list[Sequence] = []
    while loser.status is WAITING:
        came.append(driver.add(num_prompt=2, arrival_time=gap_s * (len(came) + 1), **favoured))
        driver.step()
        assert len(came) < 2_000, "it starves"
    return came


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_low_priority_is_overtaken_only_by_those_that_come_in_time(run_ahead):
    driver = Driver(policy=PriorityWithAgeing(), max_num_seqs=2, run_ahead=run_ahead)
    low = driver.add(max_tokens=8, arrival_time=0.0, priority=3)
    driver.add(max_tokens=8, arrival_time=-1.0)
    driver.add(max_tokens=8, arrival_time=-1.0)
    came = flood(driver, low, gap_s=1.0, max_tokens=3)
    late = [one for one in came if one.request.arrival_time > 3 * AGEING_S]
    assert late and all(one.status is WAITING for one in late)


def test_a_long_job_is_overtaken_only_by_those_that_come_in_time():
    driver = Driver(policy=ShortestJobFirst(), max_num_seqs=1)
    driver.add(max_tokens=8, arrival_time=-100.0)
    long = driver.add(max_tokens=64, arrival_time=0.0)
    came = flood(driver, long, gap_s=0.1, max_tokens=2)
    late = [one for one in came if one.request.arrival_time > 64 * SHORTER_S]
    assert late and all(one.status is WAITING for one in late)


def test_an_account_with_one_request_does_not_wait_for_all_of_anothers():
    driver = Driver(policy=FairShare(), max_num_seqs=1)
    greedy = [driver.add(max_tokens=4, account="greedy") for _ in range(40)]
    driver.steps(6)
    modest = driver.add(max_tokens=4, account="modest")
    driver.run_until(lambda: modest.status is not WAITING)
    assert sum(one.status is not WAITING for one in greedy) <= 3
