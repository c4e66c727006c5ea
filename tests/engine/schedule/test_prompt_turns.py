"""How prompts share the time of steps: the policy's first, the shortest, and who has waited for long."""

import pytest

from app.engine.schedule.policy import make_policy
from app.engine.schedule.prompt_turns import PATIENCE
from app.engine.schedule.rests import Rests
from app.engine.schedule.sequence import RUNNING, WAITING, Sequence
from app.engine.schedule.step_budget import DECODE_INTERVAL
from tests.engine.schedule.fake_model import Driver

POLICIES = ("fcfs", "priority", "sjf", "fair")
LONG = 4000


def make_driver(policy: str = "fcfs", **limits) -> Driver:
    given = {"num_blocks": 4000, "max_num_batched_tokens": 32, "max_model_len": 20_000, **limits}
    return Driver(policy=make_policy(policy), **given)


def num_steps_to_first(driver: Driver, *sequences: Sequence) -> int:
    """Step until these have gained tokens; how many steps that took."""
    return driver.run_until(lambda: all(one.output_token_ids or one.is_finished for one in sequences), max_steps=1000)


@pytest.mark.parametrize("itl_target", [0.0, 0.05])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_short_prompt_passes_a_long_one_whatever_the_policy(policy, itl_target):
    driver = make_driver(policy, itl_target=itl_target)
    long = driver.add(num_prompt=LONG, max_tokens=1)
    driver.steps(5)
    short = driver.add(num_prompt=100, max_tokens=1)
    assert num_steps_to_first(driver, short) <= 2 * -(-100 // 32) + 1
    assert not long.is_finished


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policys_first_gets_every_second_step_however_many_short_ones_come(policy):
    driver = make_driver(policy)
    long = driver.add(num_prompt=LONG, max_tokens=1, arrival_time=-1000.0)
    driver.step()
    for _ in range(60):
        before = long.num_scheduled
        driver.add(num_prompt=40, max_tokens=1)
        driver.steps(2)
        assert long.num_scheduled >= before + 31


def test_a_short_prompt_behind_three_long_ones_waits_for_none_of_them():
    driver = make_driver()
    longs = [driver.add(num_prompt=LONG, max_tokens=1) for _ in range(3)]
    driver.steps(2)
    short = driver.add(num_prompt=20, max_tokens=1)
    assert num_steps_to_first(driver, short) <= 3 * (PATIENCE + 2)
    assert not any(long.is_finished for long in longs)


def test_nobody_starts_before_shorter_ones_that_run_but_after_a_while():
    """A prompt that begins as one does that is being computed had better wait for that one's blocks."""
    driver = make_driver()
    driver.add(num_prompt=LONG, max_tokens=1)
    driver.steps(2)
    other = driver.add(num_prompt=LONG, max_tokens=1)
    driver.steps(PATIENCE)
    assert other.status is WAITING
    driver.steps(3)
    assert other.status is RUNNING and other.num_scheduled <= 8


def test_what_is_short_enough_goes_into_one_step_with_the_rest():
    driver = make_driver()
    one, two, three = (driver.add(num_prompt=12, max_tokens=2) for _ in range(3))
    plan = driver.step()
    assert [len(chunk.token_ids) for chunk in plan.chunks] == [12, 12, 8]
    driver.step()
    assert all(each.output_token_ids for each in (one, two, three))


def test_one_step_of_some_has_no_prompts_while_answers_are_written():
    driver = make_driver(itl_target=0.05)
    driver.add(num_prompt=4, max_tokens=500)
    driver.step()
    driver.add(num_prompt=LONG, max_tokens=1)
    plans = [driver.step() for _ in range(2 * DECODE_INTERVAL)]
    assert [plan.step % DECODE_INTERVAL for plan in plans if not plan.num_prompt_tokens] == [0, 0]


@pytest.mark.parametrize("number", [0, 1])
def test_the_steps_that_an_account_sits_out_do_not_take_its_turns(monkeypatch, number):
    """The policy's first is of the account that sits every second step out; the others' first has turns in these."""
    driver = make_driver("fair")
    first = driver.add(num_prompt=LONG, max_tokens=1, account="crowd")
    driver.add(num_prompt=4, max_tokens=500, account="crowd")
    driver.add(num_prompt=4, max_tokens=500, account="other")
    driver.run_until(lambda: len(driver.scheduler.queues.running) == 3)
    others = driver.add(num_prompt=LONG, max_tokens=1, account="other")
    driver.run_until(lambda: others.status is RUNNING)
    monkeypatch.setattr(Rests, "choose", lambda _: "crowd" if driver.model.num_steps % 2 == number else None)
    for _ in range(20):
        before = first.num_scheduled
        driver.add(num_prompt=60, max_tokens=1, account="other")
        driver.steps(4)  # two of which are the first's, and one of these its turn
        assert first.num_scheduled >= before + 29


def test_who_is_next_for_a_while_starts_though_another_account_comes_between():
    """Under `fair` the next to start may be of another account in every other step, as their answers end."""
    driver = make_driver("fair", itl_target=0.05)
    driver.add(num_prompt=4, max_tokens=500, account="b")
    driver.add(num_prompt=LONG, max_tokens=1, account="a")
    driver.steps(2)
    waiting = driver.add(num_prompt=LONG, max_tokens=1, account="b")
    for _ in range(PATIENCE):
        driver.add(num_prompt=4, max_tokens=2, account="c")
        driver.steps(3)
    assert waiting.status is RUNNING
