"""The planner: what goes into a step, who starts, and who may run at all."""

import pytest

from app.engine.schedule.plan import StepPlan
from app.engine.schedule.policy import make_policy
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING
from app.engine.schedule.step_budget import DECODE_INTERVAL, MIN_STRETCH
from tests.engine.schedule.fake_groups import ask
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel
from tests.engine.schedule.fake_tokens import reference


def new_tokens(plan: StepPlan | None) -> dict[int, int]:
    """{sequence id: number of its new tokens}, in the order of the plan."""
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in plan.chunks} if plan else {}


# --- Rules 2 and 3: what runs -------------------------------------------------------------------------------------


def test_a_whole_prompt_and_then_one_token_at_a_time():
    driver = Driver()
    sequence = driver.add(num_prompt=6, max_tokens=3)
    assert [new_tokens(driver.step()) for _ in range(3)] == [{1: 6}, {1: 1}, {1: 1}]
    assert sequence.status is FINISHED
    assert sequence.output_token_ids == reference(sequence.prompt_token_ids, 3)
    assert driver.step() is None


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_is_sampled():
    driver = Driver(max_num_batched_tokens=10)
    driver.add(num_prompt=23)
    plans = [driver.step() for _ in range(3)]
    assert [new_tokens(plan) for plan in plans] == [{1: 10}, {1: 10}, {1: 3}]
    assert [plan.logit_rows for plan in plans] == [(), (), (2,)]


def test_a_long_prompt_never_delays_who_generates():
    driver = Driver(max_num_batched_tokens=8)
    old = driver.add(num_prompt=4, max_tokens=10)
    driver.step()
    young = driver.add(num_prompt=60)
    for _ in range(8):
        assert new_tokens(driver.step()) == {old.id: 1, young.id: 7}


def test_prefills_share_what_is_left_in_the_order_of_arrival():
    driver = Driver(max_num_batched_tokens=16)
    for _ in range(3):
        driver.add(num_prompt=12)
    assert new_tokens(driver.step()) == {1: 12, 2: 4}
    assert new_tokens(driver.step()) == {1: 1, 2: 8, 3: 7}
    assert new_tokens(driver.step()) == {1: 1, 2: 1, 3: 5}


def test_nothing_is_sent_for_unchanged_sequences():
    driver = Driver(block_size=16)
    driver.add(max_tokens=8)
    driver.step()
    plan = driver.step()
    assert (plan.row_starts, plan.table_writes, plan.released_rows) == ((), (), ())


def test_the_last_token_takes_no_block():
    driver = Driver(num_blocks=2)
    driver.add(num_prompt=4, max_tokens=5)
    driver.run(max_steps=5)


# --- Rules 1 and 4: seats -----------------------------------------------------------------------------------------


def test_running_sequences_are_at_most_max_num_seqs():
    driver = Driver(max_num_seqs=2)
    for _ in range(3):
        driver.add(max_tokens=3)
    assert new_tokens(driver.step()) == {1: 4, 2: 4}
    assert (driver.scheduler.num_running, driver.scheduler.num_waiting) == (2, 1)
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


def test_sequences_keep_their_rows_and_rows_are_used_again():
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
    driver.step()  # the seat is r2's, until now
    assert new_tokens(driver.step()) == {1: 1}


def test_a_resumed_group_of_several_gets_its_seats_though_others_keep_coming():
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


# --- Rule 4: who starts -------------------------------------------------------------------------------------------


def test_a_request_starts_when_its_whole_prompt_and_the_watermark_fit():
    for num_blocks, started in ((8, {1: 12, 2: 16}), (7, {1: 12})):  # 3 + 4 + a watermark of 1 = 8
        driver = Driver(num_blocks=num_blocks)
        driver.add(num_prompt=12, max_tokens=9)  # it grows after the first step
        driver.add(num_prompt=16, max_tokens=2)
        assert new_tokens(driver.step()) == started


def test_the_watermark_is_a_hundredth_of_the_pool():
    for num_prompt, is_started in ((4 * 98, True), (4 * 98 + 1, False)):
        driver = Driver(num_blocks=101, max_num_batched_tokens=500)
        driver.add(num_prompt=4, max_tokens=2)
        second = driver.add(num_prompt, max_tokens=1)
        driver.launch()
        assert (second.status is RUNNING) == is_started  # 1 + 98 + 2


def test_alone_a_request_may_fill_the_pool():
    driver = Driver(num_blocks=4)
    driver.add(num_prompt=16, max_tokens=1)
    assert new_tokens(driver.step()) == {1: 16}


def test_a_prompt_that_does_not_fit_yet_is_not_overtaken():
    driver = Driver(num_blocks=8)
    driver.add(num_prompt=16, max_tokens=8)
    driver.add(num_prompt=28, max_tokens=2)
    driver.add(num_prompt=1, max_tokens=1)
    driver.step()
    assert driver.scheduler.num_waiting == 2
    driver.run(max_steps=20)
    assert [sequence.id for sequence in driver.finished] == [1, 2, 3]


def test_a_prompt_that_is_found_in_the_cache_needs_only_the_rest():
    driver = Driver(num_blocks=8)
    first = ask(driver, "a", range(17), 8)
    driver.step()
    second = ask(driver, "b", range(18), 2)
    assert new_tokens(driver.step()) == {first.id: 1, second.id: 2}
    driver.run(max_steps=10)


def test_blocks_of_a_prompt_are_its_own_from_the_start():
    driver = Driver(num_blocks=16, max_num_batched_tokens=4)
    driver.add(num_prompt=32)
    driver.step()
    assert driver.scheduler.num_free_blocks == 8


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


def test_fair_shares_let_an_account_in_that_sent_less():
    driver = Driver(policy=make_policy("fair"), max_num_seqs=1)
    for account in ("a", "a", "a", "b"):
        driver.add(account=account)
    driver.run(max_steps=30)
    assert [sequence.request.account for sequence in driver.finished] in (["a", "b", "a", "a"], ["b", "a", "a", "a"])


# --- The time of a step -------------------------------------------------------------------------------------------

COSTS = Costs(per_token=1e-3, per_context=1e-6, per_step=2e-3)


def measured(itl_target: float, num_decodes: int = 4, **limits) -> Driver:
    """A driver whose costs are known and `num_decodes` of whose requests are being answered."""
    driver = Driver(itl_target=itl_target, num_blocks=400, max_num_batched_tokens=256, **limits)
    driver.model = FakeModel(4, COSTS)
    for number in range(num_decodes):
        driver.add(num_prompt=8 + 5 * number, max_tokens=200)
        driver.steps(5)
    assert driver.scheduler.budget.cost.is_known
    return driver


def step_s(driver: Driver) -> float:
    """Launch and settle a step; the time it took."""
    driver.launch()
    seconds = driver.in_flight[0][1].duration_s
    driver.settle()
    return seconds


@pytest.mark.parametrize("itl_target", [0.03, 0.05, 0.08])
def test_while_answers_are_written_chunks_are_as_long_as_the_target_allows(itl_target):
    driver = measured(itl_target)
    known = driver.add(num_prompt=300, max_tokens=1)  # it teaches what looking back costs
    driver.run_until(lambda: known.is_finished)
    long, times = driver.add(num_prompt=300), []
    while not long.output_token_ids:
        before = [len(group.open[0].output_token_ids) for group in driver.scheduler.lines.running[:4]]
        has_prompts = not driver.scheduler.budget.is_for_decodes(driver.model.num_steps + 1)
        times += [step_s(driver)] * has_prompts
        after = [len(group.open[0].output_token_ids) for group in driver.scheduler.lines.running[:4]]
        assert after == [count + 1 for count in before]  # nobody waits for the prompt
    assert max(times) <= itl_target * 1.1
    assert min(times[:-1]) >= itl_target * 0.8  # and not much shorter, but for the last one


def test_without_a_target_a_chunk_is_as_long_as_the_budget_allows():
    driver = measured(itl_target=0.0)
    long = driver.add(num_prompt=600)
    assert new_tokens(driver.step())[long.id] == 256 - 4


def test_where_decodes_alone_take_the_whole_target_prompts_still_get_on():
    driver = measured(itl_target=0.001, num_decodes=8, max_num_seqs=9)
    decode_s, long, times = step_s(driver), driver.add(num_prompt=300), []
    while not long.output_token_ids:
        times.append(step_s(driver))
    assert sum(times) <= 1.2 * 300 * COSTS.per_token / (1 - 1 / MIN_STRETCH) + DECODE_INTERVAL * decode_s
    assert max(times) <= 1.3 * MIN_STRETCH * decode_s


def test_nobody_starts_in_a_step_that_has_no_time_left():
    driver = measured(itl_target=0.04)
    first, second = driver.add(num_prompt=200), driver.add(num_prompt=20)
    driver.step()
    assert (first.status, second.status) == (RUNNING, WAITING)
    assert second.block_table == []
    driver.run_until(lambda: second.status is RUNNING)


def test_the_brown_out_shrinks_chunks():
    whole, half = measured(itl_target=0.05), measured(itl_target=0.05)
    half.scheduler.budget.scale = 0.5
    sizes = []
    for driver in (whole, half):
        long = driver.add(num_prompt=300)
        sizes.append(new_tokens(driver.step())[long.id])
    assert sizes[1] < sizes[0]


# --- A budget that has shrunk -------------------------------------------------------------------------------------


def test_after_running_out_of_memory_fewer_sequences_run_and_all_end():
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16)
    for _ in range(16):
        driver.add(max_tokens=6)
    driver.steps(3)
    driver.scheduler.budget.halve()
    driver.step()
    assert driver.scheduler.lines.num_seats == 8 == driver.scheduler.budget.tokens
    driver.run(max_steps=60)
    assert len(driver.finished) == 16


@pytest.mark.parametrize("params", [{"n": 16}, {"use_beam_search": True, "beam_width": 16}])
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_group_with_more_sequences_than_the_shrunken_budget_has_tokens_still_ends(params, num_steps):
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16, num_blocks=200)
    group = driver.add(max_tokens=6, **params).group
    other = driver.add(max_tokens=6)
    driver.steps(num_steps)
    driver.scheduler.budget.halve()
    driver.run(max_steps=60)
    assert group.status is FINISHED and other.is_finished


def test_a_budget_that_went_well_for_a_while_grows_again():
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=16)
    driver.scheduler.budget.halve()
    driver.add(max_tokens=120)
    driver.run(max_steps=130)
    assert driver.scheduler.budget.tokens == 16


# --- Restricted: a fault is being isolated --------------------------------------------------------------------------


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
def test_the_blocks_of_those_that_may_not_run_go_first(others, is_growing):
    """Whatever their age: also those of the first, which would be no victim otherwise."""
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
def test_whoever_is_allowed_runs_though_others_have_the_seats_or_the_blocks(max_num_seqs, num_host_blocks):
    limits = {"max_num_seqs": max_num_seqs, "num_host_blocks": num_host_blocks}
    driver = Driver(num_blocks=200, max_num_batched_tokens=800, **limits)
    first, second = driver.add(3, max_tokens=2), driver.add(4 * 199, max_tokens=2)
    driver.step()
    driver.scheduler.restrict({"r2"})
    driver.run_until(lambda: second.is_finished)
    assert first.status is (SWAPPED if num_host_blocks else PREEMPTED)
    driver.scheduler.restrict(None)
    driver.run(max_steps=10)


def test_a_shrunken_budget_takes_the_seats_of_those_that_may_not_run():
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
