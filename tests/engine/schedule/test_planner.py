"""The planner: the tokens of a step, allowed requests, and how prompts share steps."""

import pytest

from app.engine.schedule.planner import PATIENCE
from app.engine.schedule.policy import make_policy
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING, Sequence
from app.engine.schedule.shares import Rests
from app.engine.schedule.step_budget import DECODE_INTERVAL
from tests.engine.schedule.fake_groups import new_tokens
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.fake_tokens import reference


def test_a_prompt_takes_one_step_and_each_token_another():
    driver = Driver()
    sequence = driver.add(num_prompt=6, max_tokens=3)
    assert [new_tokens(driver.step()) for _ in range(3)] == [{1: 6}, {1: 1}, {1: 1}]
    assert sequence.status is FINISHED
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 3)
    assert driver.step() is None


def test_a_long_prompt_is_chunked_and_only_the_last_chunk_sampled():
    driver = Driver(max_num_batched_tokens=10)
    driver.add(num_prompt=23)
    plans = [driver.step() for _ in range(3)]
    assert [new_tokens(plan) for plan in plans] == [{1: 10}, {1: 10}, {1: 3}]
    assert [plan.logit_rows for plan in plans] == [(), (), (2,)]


def test_a_long_prompt_never_delays_decoding_sequences():
    driver = Driver(max_num_batched_tokens=8)
    old = driver.add(num_prompt=4, max_tokens=10)
    driver.step()
    young = driver.add(num_prompt=60)
    for _ in range(8):
        assert new_tokens(driver.step()) == {old.id: 1, young.id: 7}


def test_prefills_share_the_rest_of_the_budget_in_order_of_arrival():
    driver = Driver(max_num_batched_tokens=16)
    for _ in range(3):
        driver.add(num_prompt=12)
    assert new_tokens(driver.step()) == {1: 12, 2: 4}
    assert new_tokens(driver.step()) == {1: 1, 2: 8, 3: 7}
    assert new_tokens(driver.step()) == {1: 1, 2: 1, 3: 5}


def test_a_plan_has_no_changes_for_unchanged_sequences():
    driver = Driver(block_size=16)
    driver.add(max_tokens=8)
    driver.step()
    plan = driver.step()
    assert (plan.row_starts, plan.table_writes, plan.released_rows) == ((), (), ())


def test_the_last_token_takes_no_block():
    driver = Driver(num_blocks=2)
    driver.add(num_prompt=4, max_tokens=5)
    driver.run(max_steps=5)


# --- Restricted to allowed requests after a fault-------------------------------------------------------------------


def test_only_allowed_requests_run_and_start():
    driver = Driver()
    first, second = driver.add(max_tokens=9), driver.add(max_tokens=9)
    driver.step()
    third, fourth = driver.add(max_tokens=9), driver.add(max_tokens=9)
    driver.scheduler.restrict({"r2", "r4"})
    assert new_tokens(driver.step()) == {second.id: 1, fourth.id: 4}
    assert (first.status, third.status) == (RUNNING, WAITING)
    driver.scheduler.restrict(None)
    assert new_tokens(driver.step()) == {first.id: 1, second.id: 1, fourth.id: 1, third.id: 4}
    driver.run(max_steps=20)


def test_a_resumed_group_runs_only_if_it_is_allowed():
    driver = Driver()
    sequence = driver.add(max_tokens=9)
    driver.step()
    driver.scheduler.pause("r1")
    driver.scheduler.restrict({"r2"})
    driver.scheduler.resume("r1")
    assert driver.step() is None and sequence.status is PAUSED
    driver.scheduler.restrict({"r1"})
    assert new_tokens(driver.step()) == {1: 1}


@pytest.mark.parametrize("others", ["running", "paused", "resuming"])
@pytest.mark.parametrize("is_growing", [True, False])
def test_requests_that_are_not_allowed_are_the_first_victims(others, is_growing):
    """In any order: also the first one, which otherwise is never a victim."""
    driver = Driver(num_blocks=9)
    first, second = driver.add(8, max_tokens=9), driver.add(8, max_tokens=9)
    driver.step()
    if others != "running":
        driver.scheduler.pause("r1")
        driver.scheduler.pause("r2")
    if is_growing:
        allowed = driver.add(16, max_tokens=20)
        driver.step()
    driver.scheduler.restrict({"r3"})
    if others == "resuming":
        driver.scheduler.resume("r1")
        driver.scheduler.resume("r2")
    if not is_growing:
        allowed = driver.add(25, max_tokens=12)
    driver.run_until(lambda: allowed.is_finished)
    assert {first.status, second.status} == {PREEMPTED}
    assert allowed.group.num_preemptions == 0
    driver.scheduler.restrict(None)
    for request_id in ("r1", "r2"):
        driver.scheduler.resume(request_id)
    driver.run(max_steps=30)


@pytest.mark.parametrize("max_num_seqs, num_host_blocks", [(1, 0), (1, 30), (8, 0)])
def test_an_allowed_request_runs_though_others_hold_seats_or_blocks(max_num_seqs, num_host_blocks):
    limits = {"max_num_seqs": max_num_seqs, "num_host_blocks": num_host_blocks}
    driver = Driver(num_blocks=200, max_num_batched_tokens=800, **limits)
    first, second = driver.add(3, max_tokens=2), driver.add(4 * 199, max_tokens=2)
    driver.step()
    driver.scheduler.restrict({"r2"})
    driver.run_until(lambda: second.is_finished)
    assert first.status is (SWAPPED if num_host_blocks else PREEMPTED)
    driver.scheduler.restrict(None)
    driver.run(max_steps=10)


def test_a_reduced_budget_takes_seats_of_requests_not_allowed():
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16)
    sequences = [driver.add(max_tokens=9) for _ in range(12)]
    driver.steps(4)
    driver.scheduler.restrict({sequence.request.id for sequence in sequences[8:]})
    driver.scheduler.budget.halve()
    plan = driver.step()
    assert list(new_tokens(plan)) == [sequence.id for sequence in sequences[8:]]
    assert not any(sequence.group.num_preemptions for sequence in sequences[8:])
    driver.scheduler.restrict(None)
    driver.run(max_steps=60)


# --- Turns of prompts -------------------------------------------------------------------------------------------------

POLICIES = ("fcfs", "priority", "sjf", "fair")
LONG = 4000


def make_driver(policy: str = "fcfs", **limits) -> Driver:
    given = {"num_blocks": 4000, "max_num_batched_tokens": 32, "max_model_len": 20_000, **limits}
    return Driver(policy=make_policy(policy), **given)


def num_steps_to_first(driver: Driver, *sequences: Sequence) -> int:
    """Step until each of these has a token; return the number of steps."""
    return driver.run_until(lambda: all(one.output_token_ids or one.is_finished for one in sequences), max_steps=1000)


@pytest.mark.parametrize("itl_target", [0.0, 0.05])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_short_prompt_passes_a_long_one_under_every_policy(policy, itl_target):
    driver = make_driver(policy, itl_target=itl_target)
    long = driver.add(num_prompt=LONG, max_tokens=1)
    driver.steps(5)
    short = driver.add(num_prompt=100, max_tokens=1)
    assert num_steps_to_first(driver, short) <= 2 * -(-100 // 32) + 1
    assert not long.is_finished


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_prompt_in_order_gets_every_second_step(policy):
    driver = make_driver(policy)
    long = driver.add(num_prompt=LONG, max_tokens=1, arrival_time=-1000.0)
    driver.step()
    for _ in range(60):
        before = long.num_scheduled
        driver.add(num_prompt=40, max_tokens=1)
        driver.steps(2)
        assert long.num_scheduled >= before + 31


def test_a_short_prompt_does_not_wait_for_three_long_ones():
    driver = make_driver()
    longs = [driver.add(num_prompt=LONG, max_tokens=1) for _ in range(3)]
    driver.steps(2)
    short = driver.add(num_prompt=20, max_tokens=1)
    assert num_steps_to_first(driver, short) <= 3 * (PATIENCE + 2)
    assert not any(long.is_finished for long in longs)


def test_a_prompt_starts_before_shorter_running_ones_after_a_while():
    """Waiting is useful for a prompt that shares a prefix with a prompt that is being computed."""
    driver = make_driver()
    driver.add(num_prompt=LONG, max_tokens=1)
    driver.steps(2)
    other = driver.add(num_prompt=LONG, max_tokens=1)
    driver.steps(PATIENCE)
    assert other.status is WAITING
    driver.steps(3)
    assert other.status is RUNNING and other.num_scheduled <= 8


def test_short_prompts_share_a_step():
    driver = make_driver()
    one, two, three = (driver.add(num_prompt=12, max_tokens=2) for _ in range(3))
    plan = driver.step()
    assert [len(chunk.token_ids) for chunk in plan.chunks] == [12, 12, 8]
    driver.step()
    assert all(each.output_token_ids for each in (one, two, three))


def test_every_nth_step_has_no_prompts_while_sequences_decode():
    driver = make_driver(itl_target=0.05)
    driver.add(num_prompt=4, max_tokens=500)
    driver.step()
    driver.add(num_prompt=LONG, max_tokens=1)
    plans = [driver.step() for _ in range(2 * DECODE_INTERVAL)]
    assert [plan.step % DECODE_INTERVAL for plan in plans if not plan.num_prompt_tokens] == [0, 0]


@pytest.mark.parametrize("number", [0, 1])
def test_rests_of_an_account_do_not_take_its_turns(monkeypatch, number):
    """The first prompt in order is of the account that rests every second step; in these steps others have turns."""
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
        driver.steps(4)  # in two of them its account takes part, and one of these is its turn
        assert first.num_scheduled >= before + 29


def test_the_next_group_starts_though_another_account_comes_between():
    """Under `fair` the next group to start may be of another account in every other step."""
    driver = make_driver("fair", itl_target=0.05)
    driver.add(num_prompt=4, max_tokens=500, account="b")
    driver.add(num_prompt=LONG, max_tokens=1, account="a")
    driver.steps(2)
    waiting = driver.add(num_prompt=LONG, max_tokens=1, account="b")
    for _ in range(PATIENCE):
        driver.add(num_prompt=4, max_tokens=2, account="c")
        driver.steps(3)
    assert waiting.status is RUNNING
