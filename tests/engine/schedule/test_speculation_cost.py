"""The limits of drafts: they use only spare resources, and only if their gain exceeds their cost."""

from types import SimpleNamespace

import pytest

from app.engine.schedule.limits import max_logit_rows
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.speculation.speculation import LOGITS_SHARE, TRY_INTERVAL, _Rate
from app.engine.schedule.step_cost import StepCost
from tests.engine.schedule.fake_groups import launch_draft, make_drafting_driver
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel
from tests.engine.schedule.open_requests import num_open

# --- Rule 1: only spare resources -----------------------------------------------------------------------------------


def test_a_step_with_a_prompt_has_no_draft_tokens():
    driver = make_drafting_driver(max_num_batched_tokens=8)
    driver.add(max_tokens=60, top_k=1)
    launch_draft(driver)
    driver.finish_step()
    driver.add(num_prompt=40, max_tokens=1)
    while len(driver.scheduler.queues.running) + driver.scheduler.queues.num_waiting == 2:
        assert not driver.step().num_draft_tokens
    assert driver.step().num_draft_tokens


def test_drafts_stay_within_the_tokens_of_a_step():
    driver = make_drafting_driver(longest=8, max_num_batched_tokens=5, max_num_seqs=4)
    for _ in range(3):
        driver.add(max_tokens=40, top_k=1)
    while num_open(driver.scheduler):
        assert driver.step().num_tokens <= 5


def test_drafts_stay_within_the_logit_rows():
    driver = make_drafting_driver(longest=3, max_num_seqs=2)
    assert max_logit_rows(driver.scheduler.limits) == 5
    for _ in range(2):
        driver.add(max_tokens=60, top_k=1)
    most = 0
    while num_open(driver.scheduler):
        most = max(most, len(driver.step().logit_rows))
    assert most == 5


def test_a_draft_takes_free_blocks():
    driver = make_drafting_driver(longest=8, block_size=2)
    sequence = driver.add(num_prompt=2, max_tokens=40, top_k=1)
    launch_draft(driver)
    assert len(sequence.block_table) * 2 >= sequence.num_scheduled + 2


def num_ahead(sequence: Sequence) -> int:
    """The number of blocks, of 2 slots, that it holds only for draft tokens."""
    return len(sequence.block_table) - -(-sequence.num_scheduled // 2)


def test_a_draft_leaves_a_free_block_for_each_seat():
    driver = make_drafting_driver(longest=8, block_size=2, num_blocks=10, max_num_seqs=2, enable_prefix_caching=False)
    sequences = [driver.add(num_prompt=2, max_tokens=14, top_k=1) for _ in range(2)]
    most = 0
    while num_open(driver.scheduler):
        before = [num_ahead(one) for one in sequences]
        driver.launch()
        took = [num_ahead(one) > count for one, count in zip(sequences, before, strict=True)]
        assert driver.scheduler.tables.pool.num_free >= driver.scheduler.queues.num_seats or not any(took)
        most = max(most, sum(took))
        driver.finish_step()
    assert most > 0


def test_a_draft_takes_no_blocks_while_a_request_waits_for_blocks():
    driver = make_drafting_driver(longest=8, block_size=2, num_blocks=20)
    first = driver.add(num_prompt=2, max_tokens=36, top_k=1)
    driver.steps(3)
    driver.add(num_prompt=36, max_tokens=1)
    num_draft = 0
    while not first.is_finished:
        num_draft += driver.launch().num_draft_tokens
        assert driver.scheduler.queues.num_waiting == 1 and num_ahead(first) == 0
        driver.finish_step()
    assert num_draft > 0


def test_no_step_has_draft_tokens_while_a_culprit_is_searched():
    driver = make_drafting_driver()
    driver.add(max_tokens=60, top_k=1)
    launch_draft(driver)
    driver.finish_step()
    driver.scheduler.restrict({"r1"})
    assert [driver.step().num_draft_tokens for _ in range(3)] == [0, 0, 0]
    driver.scheduler.restrict(None)
    assert driver.step().num_draft_tokens


# --- Rule 2: gain exceeds cost --------------------------------------------------------------------------------------


def costly(per_token: float, per_step: float, itl_target: float = 0.0, num_others: int = 0) -> Driver:
    """A driver that has learned the step costs; the outputs of the other requests have no predictable tokens."""
    driver = make_drafting_driver(
        longest=8, itl_target=itl_target, num_blocks=2000, max_num_batched_tokens=256, max_num_seqs=64
    )
    driver.model = FakeModel(4, Costs(per_token=per_token, per_step=per_step))
    for number in range(max(num_others, 1)):
        driver.add(num_prompt=2 + 5 * number, max_tokens=500 if number < num_others else 9)
        driver.step()
    driver.steps(12)
    assert driver.scheduler.budget.cost.is_known
    return driver


def draft_lengths(driver: Driver, num_steps: int = 40) -> list[int]:
    """Add a request with a repetitive output; return the numbers of draft tokens of the next steps."""
    driver.add(max_tokens=400, top_k=1)
    return [driver.step().num_draft_tokens for _ in range(num_steps)]


def test_drafts_are_long_if_another_token_costs_little():
    assert max(draft_lengths(costly(per_token=1e-4, per_step=1e-2))) == 8


def test_drafts_are_rare_if_another_token_costs_as_much_as_a_step():
    lengths = draft_lengths(costly(per_token=1e-2, per_step=1e-4), num_steps=5 * TRY_INTERVAL // 2)
    assert sum(length > 0 for length in lengths) == 2


def test_an_overestimated_cost_is_corrected():
    """The only prompt was slow, as first steps are: each of its tokens seems to cost as much as a step."""
    driver = make_drafting_driver(longest=8, max_num_batched_tokens=256, num_blocks=200)
    cost, driver.model = driver.scheduler.budget.cost, FakeModel(4, Costs(per_token=1e-4, per_step=1e-2))
    for _ in range(8):
        cost.observe(1, 10, 0.01)
        cost.observe(20, 200, 0.4)
    assert cost.predict(2, 20) - cost.predict(1, 10) > 0.01
    lengths = draft_lengths(driver, num_steps=TRY_INTERVAL + 30)
    assert sum(lengths[: TRY_INTERVAL - 1]) == 0 and lengths[-5:] == [8] * 5


def test_more_sequences_in_a_step_raise_the_cost_of_drafts():
    """Alone a draft token costs a tenth of a step; in a batch of thirty it costs as much as any other token."""
    alone = draft_lengths(costly(per_token=1e-3, per_step=1e-2))
    batched = draft_lengths(costly(per_token=1e-3, per_step=1e-2, num_others=30))
    assert sum(batched) < sum(alone) / 4


def test_a_draft_that_pays_raises_the_cost_of_the_next_one():
    cost = StepCost()
    for num_tokens in (1, 30, 2, 60, 3, 1, 40, 20):
        cost.observe(num_tokens, 0, 0.01 + 0.001 * num_tokens)
    rate = _Rate(SimpleNamespace(num_tokens=4, num_attended=0, sampling=[None] * 4, num_draft_tokens=0), cost)
    token_cost = rate.token_cost(0)
    assert token_cost == pytest.approx(LOGITS_SHARE * 0.001 * 4 / 0.014, rel=0.03)
    rate.add(3.0, 2 * token_cost)
    assert rate.token_cost(0) == pytest.approx(LOGITS_SHARE * 0.001 * 7 / (0.014 + 2 * 0.001 * LOGITS_SHARE), rel=0.03)


def test_the_second_draft_of_a_step_is_shorter_than_the_first():
    driver = costly(per_token=1e-3, per_step=1e-2)
    sequences = [driver.add(num_prompt=4, max_tokens=40, top_k=1) for _ in range(2)]
    launch_draft(driver)
    driver.finish_step()
    for sequence in sequences:
        sequence.proposer.chance = 0.85
    first, second = driver.launch().chunks
    assert len(first.token_ids) > len(second.token_ids) > 1


def test_drafts_keep_the_step_within_the_target():
    for target, longest in ((0.02, 8), (0.0135, 2), (0.0105, 0)):
        assert max(draft_lengths(costly(per_token=1e-3, per_step=1e-2, itl_target=target))) <= longest
