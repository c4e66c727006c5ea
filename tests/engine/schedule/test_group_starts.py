"""GroupStarts: which groups get seats and blocks, and in which order."""

import pytest

from app.engine.schedule.policy import make_policy
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING
from app.engine.schedule.shares import TURN_STEPS
from tests.engine.schedule.fake_groups import add_prompt, new_tokens
from tests.engine.schedule.fake_model import Driver

# --- Seats --------------------------------------------------------------------------------------------------------


def test_others_pass_a_group_that_can_have_its_seats_from_nobody():
    """Four accounts ask for 16 answers each, and there are 64 seats, of which another account has one."""
    driver = Driver(policy=make_policy("fair"), max_num_seqs=64, max_num_batched_tokens=256, num_blocks=20_000)
    driver.add(account="good", max_tokens=600)
    for account in "abcd":
        driver.add(account=account, n=16, max_tokens=400)
    driver.steps(30)
    chat = driver.add(account="good", max_tokens=1)
    driver.steps(4)
    assert chat.is_finished


def test_a_group_that_is_passed_starts_when_the_largest_one_ends():
    driver = Driver(policy=make_policy("fair"), max_num_seqs=8, max_num_batched_tokens=256, num_blocks=20_000)
    driver.add(account="a", n=4, max_tokens=40)
    driver.step()
    last = driver.add(account="b", n=5, max_tokens=3)
    for number in range(50):  # a request of another account in each step
        driver.add(account=f"c{number}", max_tokens=60)
        driver.step()
    assert last.is_finished


def test_an_account_without_a_seat_has_one_soon_where_groups_hold_all():
    """Four accounts ask for 16 answers each, and have all 64 seats."""
    driver = Driver(policy=make_policy("fair"), max_num_seqs=64, max_num_batched_tokens=256, num_blocks=20_000)
    wide = [driver.add(account=account, n=16, max_tokens=60).group for account in "abcd"]
    driver.steps(10)
    assert [group.status for group in wide] == [RUNNING] * 4
    chat = driver.add(account="e", max_tokens=20)
    assert driver.run_until(lambda: bool(chat.output_token_ids)) <= TURN_STEPS
    assert [group.status for group in wide] == [PAUSED, RUNNING, RUNNING, RUNNING]
    driver.run(max_steps=200)
    assert driver.scheduler.preemption.counts.num_preemptions == 0


def test_a_group_that_gave_way_does_not_pass_the_one_it_gave_way_to():
    """It holds all seats, and the account of the chat has had more tokens than that of the group."""
    driver = Driver(policy=make_policy("fair"), max_num_seqs=4, max_num_batched_tokens=64, num_blocks=2_000)
    wide = driver.add(account="wide", n=4, max_tokens=120).group
    long = driver.add(account="chat", num_prompt=400, max_tokens=2)
    driver.run_until(lambda: long.is_finished)
    chat = driver.add(account="chat", max_tokens=40)
    driver.run_until(lambda: bool(chat.output_token_ids))
    for _ in range(30):
        assert wide.status is PAUSED
        driver.step()
    driver.run_until(lambda: wide.status is RUNNING)


def test_groups_take_turns_past_one_that_wants_more_seats_than_an_answer_of_one_choice_leaves():
    """It has its turn when that answer ends; until then other answers of one choice wait behind it."""
    driver = Driver(policy=make_policy("fair"), max_num_seqs=4, max_num_batched_tokens=64, num_blocks=2_000)
    chat = driver.add(account="a", max_tokens=150)
    driver.step()
    wide, *others = [driver.add(account=name, n=n, max_tokens=400).group for name, n in (("b", 4), ("c", 3), ("d", 3))]
    late = driver.add(account="e", max_tokens=8)
    driver.steps(2)
    for number in range(4):
        assert [group.status is RUNNING for group in others] == [number % 2 == 0, number % 2 == 1]
        driver.steps(TURN_STEPS)
    assert wide.status is WAITING and late.status is WAITING
    driver.run_until(lambda: chat.is_finished)
    driver.run_until(lambda: wide.status is RUNNING, max_steps=TURN_STEPS + 1)
    driver.run_until(lambda: late.is_finished)


def test_paused_groups_that_hold_the_blocks_of_the_next_one_run_when_nothing_else_does():
    driver = Driver(policy=make_policy("fair"), max_num_seqs=4, max_num_batched_tokens=256, num_blocks=100)
    wide = driver.add(account="a", n=4, num_prompt=40, max_tokens=60).group
    driver.steps(TURN_STEPS)
    driver.add(account="b", n=2, max_tokens=2)
    driver.steps(2)
    late = driver.add(account="c", num_prompt=240, max_tokens=4)
    assert wide.status is PAUSED
    driver.run(max_steps=80)
    assert late.is_finished


def test_a_resumed_group_runs_before_one_of_its_account_that_lacks_the_blocks_it_holds():
    driver = Driver(policy=make_policy("fair"), num_blocks=8)
    first, second = (driver.add(account="a", num_prompt=12, max_tokens=20).group for _ in range(2))
    driver.step()
    driver.scheduler.pause("r1")
    driver.run_until(lambda: first.status is PREEMPTED)
    driver.scheduler.pause("r2")
    driver.run_until(lambda: second.status is PAUSED)
    driver.scheduler.resume("r2")
    driver.scheduler.resume("r1")
    driver.run(max_steps=60)
    assert [sequence.group for sequence in driver.finished] == [second, first]


def test_a_group_with_more_choices_than_a_step_has_tokens_runs_alone():
    """Out of memory, a step was given fewer tokens than the next group, which nothing runs beside, wants seats."""
    driver = Driver(policy=make_policy("fair"), max_num_seqs=64, max_num_batched_tokens=64, num_blocks=20_000)
    group = driver.add(account="a", n=16, max_tokens=3)
    driver.add(account="b", max_tokens=3)
    while driver.scheduler.budget.halve():
        pass
    driver.run(max_steps=60)
    assert group.is_finished


def test_running_sequences_are_at_most_max_num_seqs():
    driver = Driver(max_num_seqs=2)
    for _ in range(3):
        driver.add(max_tokens=3)
    assert new_tokens(driver.step()) == {1: 4, 2: 4}
    assert (len(driver.scheduler.queues.running), driver.scheduler.queues.num_waiting) == (2, 1)
    driver.run(max_steps=7)


def test_no_more_sequences_run_than_a_step_has_tokens():
    driver = Driver(max_num_seqs=8, max_num_batched_tokens=3)
    for _ in range(6):
        driver.add(num_prompt=1, max_tokens=5)
    assert new_tokens(driver.step()) == {1: 1, 2: 1, 3: 1}
    for request_id in ("r1", "r2", "r3"):
        driver.scheduler.pause(request_id)
    assert new_tokens(driver.step()) == {4: 1, 5: 1, 6: 1}
    for request_id in ("r1", "r2", "r3"):
        driver.scheduler.resume(request_id)
    assert new_tokens(driver.step()) == {4: 1, 5: 1, 6: 1}
    driver.run(max_steps=20)


def test_sequences_keep_their_rows_and_rows_are_reused():
    driver = Driver(max_num_seqs=2)
    first, second = driver.add(max_tokens=2), driver.add(max_tokens=4)
    driver.steps(2)
    assert (first.row, second.row) == (None, 2)
    driver.add()
    plan = driver.step()
    assert plan.released_rows == (1,) and [start.row for start in plan.row_starts] == [1]


def test_resumed_groups_take_free_seats_before_waiting_ones():
    driver = Driver(max_num_seqs=1)
    driver.add(max_tokens=9)
    driver.step()
    driver.scheduler.pause("r1")
    driver.add(max_tokens=2)
    driver.add()
    driver.step()
    driver.scheduler.resume("r1")
    driver.step()  # r2 has the seat in this step
    assert new_tokens(driver.step()) == {1: 1}


def test_a_resumed_group_gets_several_seats_while_requests_arrive():
    driver = Driver(max_num_seqs=2)
    group = driver.add(max_tokens=9, n=2).group
    driver.step()
    driver.scheduler.pause("r1")
    for _ in range(2):
        driver.add(max_tokens=5)
        driver.step()
    driver.scheduler.resume("r1")
    for _ in range(6):
        driver.add(max_tokens=5)
        driver.step()
    assert group.status is RUNNING


# --- Order of starts ----------------------------------------------------------------------------------------------


def test_a_request_starts_when_its_prompt_and_the_watermark_fit():
    for num_blocks, started in ((8, {1: 12, 2: 16}), (7, {1: 12})):  # 3 + 4 + a watermark of 1 = 8
        driver = Driver(num_blocks=num_blocks)
        driver.add(num_prompt=12, max_tokens=9)  # it grows after the first step
        driver.add(num_prompt=16, max_tokens=2)
        assert new_tokens(driver.step()) == started


def test_the_watermark_is_one_percent_of_the_pool():
    for num_prompt, is_started in ((4 * 98, True), (4 * 98 + 1, False)):
        driver = Driver(num_blocks=101, max_num_batched_tokens=500)
        driver.add(num_prompt=4, max_tokens=2)
        second = driver.add(num_prompt, max_tokens=1)
        driver.launch()
        assert (second.status is RUNNING) == is_started  # 1 + 98 + 2


def test_a_request_alone_may_fill_the_pool():
    driver = Driver(num_blocks=4)
    driver.add(num_prompt=16, max_tokens=1)
    assert new_tokens(driver.step()) == {1: 16}


def test_a_waiting_prompt_that_does_not_fit_is_not_overtaken():
    driver = Driver(num_blocks=8)
    driver.add(num_prompt=16, max_tokens=8)
    driver.add(num_prompt=28, max_tokens=2)
    driver.add(num_prompt=1, max_tokens=1)
    driver.step()
    assert driver.scheduler.queues.num_waiting == 2
    driver.run(max_steps=20)
    assert [sequence.id for sequence in driver.finished] == [1, 2, 3]


def test_a_cached_prompt_needs_only_its_other_blocks():
    driver = Driver(num_blocks=8)
    first = add_prompt(driver, "a", range(17), 8)
    driver.step()
    second = add_prompt(driver, "b", range(18), 2)
    assert new_tokens(driver.step()) == {first.id: 1, second.id: 2}
    driver.run(max_steps=10)


def test_a_prompt_gets_all_its_blocks_at_its_start():
    driver = Driver(num_blocks=16, max_num_batched_tokens=4)
    driver.add(num_prompt=32)
    driver.step()
    assert driver.scheduler.tables.pool.num_free == 8


@pytest.mark.parametrize(
    "policy, given",
    [
        ("fcfs", [{"arrival_time": 3.0}, {"arrival_time": 1.0}, {"arrival_time": 2.0}]),
        ("priority", [{"priority": 2}, {"priority": -1}, {"priority": 0}]),
        ("sjf", [{"max_tokens": 9}, {"max_tokens": 2}, {"max_tokens": 4}]),
    ],
)
def test_requests_start_in_the_policys_order(policy, given):
    driver = Driver(policy=make_policy(policy), max_num_seqs=1)
    for one in given:
        driver.add(**{"arrival_time": 0.0, **one})
    driver.run(max_steps=30)
    assert [sequence.id for sequence in driver.finished] == [2, 3, 1]


def test_fair_shares_start_an_account_with_fewer_requests_earlier():
    driver = Driver(policy=make_policy("fair"), max_num_seqs=1)
    for account in ("a", "a", "a", "b"):
        driver.add(account=account)
    driver.run(max_steps=30)
    assert [sequence.request.account for sequence in driver.finished] in (["a", "b", "a", "a"], ["b", "a", "a", "a"])


def test_fair_shares_charge_a_partly_computed_prompt():
    driver = Driver(policy=make_policy("fair"), max_num_seqs=1, max_num_batched_tokens=16)
    driver.add(account="paused")
    driver.scheduler.pause("r1")
    driver.add(account="a", num_prompt=100)
    driver.steps(3)
    driver.scheduler.abort("r2")
    for account in ("a", "b"):
        driver.add(account=account)
    driver.steps(30)
    assert [sequence.request.account for sequence in driver.finished] == ["b", "a"]


# --- A reduced budget ---------------------------------------------------------------------------------------------


def test_fewer_sequences_run_after_running_out_of_memory():
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16)
    for _ in range(16):
        driver.add(max_tokens=6)
    driver.steps(3)
    driver.scheduler.budget.halve()
    driver.step()
    assert driver.scheduler.queues.num_seats == 8 == driver.scheduler.budget.tokens
    driver.run(max_steps=60)
    assert len(driver.finished) == 16


@pytest.mark.parametrize("params", [{"n": 16}, {"use_beam_search": True, "beam_width": 16}])
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_group_larger_than_the_reduced_budget_still_ends(params, num_steps):
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16, num_blocks=200)
    group = driver.add(max_tokens=6, **params).group
    other = driver.add(max_tokens=6)
    driver.steps(num_steps)
    driver.scheduler.budget.halve()
    driver.run(max_steps=60)
    assert group.status is FINISHED and other.is_finished


def test_a_reduced_budget_grows_after_steps_without_a_fault():
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16)
    driver.scheduler.budget.halve()
    driver.add(max_tokens=120)
    driver.run(max_steps=130)
    assert driver.scheduler.budget.tokens == 16
