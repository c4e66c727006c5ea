"""Chunk sizes: prompts take what is left of the time that a step may take."""

import pytest

from app.engine.schedule.chunk_sizes import ChunkSizes
from app.engine.schedule.rests import PROMPT_SHARE, Rests
from app.engine.schedule.sequence import RUNNING, WAITING
from app.engine.schedule.shares import SeatShares
from app.engine.schedule.state_rows import RowPool
from app.engine.schedule.step_budget import DECODE_INTERVAL, MIN_STRETCH
from app.engine.schedule.step_builder import StepPlanBuilder
from tests.engine.schedule.fake_groups import make_running, new_tokens
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel

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
        before = [len(group.open[0].output_token_ids) for group in driver.scheduler.queues.running[:4]]
        has_prompts = not driver.scheduler.budget.is_for_decodes(driver.model.num_steps + 1)
        times += [step_s(driver)] * has_prompts
        after = [len(group.open[0].output_token_ids) for group in driver.scheduler.queues.running[:4]]
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


def test_while_an_account_rests_a_step_with_prompts_stays_short():
    driver = measured(itl_target=0.0)
    shares = SeatShares()
    for name, number in (("crowd", 60), ("other", 1)):
        shares.take(make_running(account=name), number)
    rests = Rests(shares)
    rests.observe(0.4, None)
    sizes = ChunkSizes(driver.scheduler.budget, rests)
    drafts = [StepPlanBuilder(1, 0.0, 256, RowPool(4)) for _ in range(2)]
    drafts[1].resting = "crowd"
    whole, short = (sizes.most(200, 0, draft, 0) for draft in drafts)
    assert whole == 200
    assert driver.scheduler.budget.cost.predict(short, 0) == pytest.approx(PROMPT_SHARE * 0.4, rel=0.2)
