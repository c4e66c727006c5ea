"""What drafts may take and cost: only what is left over, and only where they gain more than they cost."""

from types import SimpleNamespace

import pytest

from app.engine.schedule.sequence import Sequence
from app.engine.schedule.speculation.speculation import LOGITS_SHARE, TRY_INTERVAL, _Rate
from app.engine.schedule.step_cost import StepCost
from tests.engine.schedule.fake_groups import drafting, launch_draft
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel

# --- Rule 1: what is left over --------------------------------------------------------------------------------------


def test_a_step_with_a_prompt_has_no_guesses():
    driver = drafting(max_num_batched_tokens=8)
    driver.add(max_tokens=60, top_k=1)
    launch_draft(driver)
    driver.finish_step()
    driver.add(num_prompt=40, max_tokens=1)
    while len(driver.scheduler.queues.running) + driver.scheduler.queues.num_waiting == 2:
        assert not driver.step().num_draft_tokens
    assert driver.step().num_draft_tokens


def test_guesses_stay_within_the_tokens_of_a_step():
    driver = drafting(longest=8, max_num_batched_tokens=5, max_num_seqs=4)
    for _ in range(3):
        driver.add(max_tokens=40, top_k=1)
    while driver.scheduler.has_work:
        assert driver.step().num_tokens <= 5


def test_guesses_stay_within_the_rows_of_logits():
    driver = drafting(longest=3, max_num_seqs=2)
    assert driver.scheduler.limits.max_logit_rows == 5
    for _ in range(2):
        driver.add(max_tokens=60, top_k=1)
    most = 0
    while driver.scheduler.has_work:
        most = max(most, len(driver.step().logit_rows))
    assert most == 5


def test_a_guess_takes_free_blocks():
    driver = drafting(longest=8, block_size=2)
    sequence = driver.add(num_prompt=2, max_tokens=40, top_k=1)
    launch_draft(driver)
    assert len(sequence.block_table) * 2 >= sequence.num_scheduled + 2


def num_ahead(sequence: Sequence) -> int:
    """How many blocks of 2 slots it holds for nothing but guesses."""
    return len(sequence.block_table) - -(-sequence.num_scheduled // 2)


def test_a_guess_leaves_a_block_for_everybody():
    driver = drafting(longest=8, block_size=2, num_blocks=10, max_num_seqs=2, enable_prefix_caching=False)
    sequences = [driver.add(num_prompt=2, max_tokens=14, top_k=1) for _ in range(2)]
    most = 0
    while driver.scheduler.has_work:
        before = [num_ahead(one) for one in sequences]
        driver.launch()
        took = [num_ahead(one) > count for one, count in zip(sequences, before, strict=True)]
        assert driver.scheduler.tables.pool.num_free >= driver.scheduler.queues.num_seats or not any(took)
        most = max(most, sum(took))
        driver.finish_step()
    assert most > 0


def test_while_somebody_waits_for_blocks_a_guess_takes_none():
    driver = drafting(longest=8, block_size=2, num_blocks=20)
    first = driver.add(num_prompt=2, max_tokens=36, top_k=1)
    driver.steps(3)
    driver.add(num_prompt=36, max_tokens=1)
    num_guessed = 0
    while not first.is_finished:
        num_guessed += driver.launch().num_draft_tokens
        assert driver.scheduler.queues.num_waiting == 1 and num_ahead(first) == 0
        driver.finish_step()
    assert num_guessed > 0


def test_while_a_fault_is_looked_into_nobody_guesses():
    driver = drafting()
    driver.add(max_tokens=60, top_k=1)
    launch_draft(driver)
    driver.finish_step()
    driver.scheduler.restrict({"r1"})
    assert [driver.step().num_draft_tokens for _ in range(3)] == [0, 0, 0]
    driver.scheduler.restrict(None)
    assert driver.step().num_draft_tokens


# --- Rule 2: it must pay --------------------------------------------------------------------------------------------


def costly(per_token: float, per_step: float, itl_target: float = 0.0, num_others: int = 0) -> Driver:
    """A driver that knows what steps cost; the others' answers cannot be guessed."""
    driver = drafting(longest=8, itl_target=itl_target, num_blocks=2000, max_num_batched_tokens=256, max_num_seqs=64)
    driver.model = FakeModel(4, Costs(per_token=per_token, per_step=per_step))
    for number in range(max(num_others, 1)):
        driver.add(num_prompt=2 + 5 * number, max_tokens=500 if number < num_others else 9)
        driver.step()
    driver.steps(12)
    assert driver.scheduler.budget.cost.is_known
    return driver


def guesses_of(driver: Driver, num_steps: int = 40) -> list[int]:
    """Add an answer that repeats itself; how many tokens the next steps guess."""
    driver.add(max_tokens=400, top_k=1)
    return [driver.step().num_draft_tokens for _ in range(num_steps)]


def test_where_a_token_more_costs_little_guesses_are_long():
    assert max(guesses_of(costly(per_token=1e-4, per_step=1e-2))) == 8


def test_where_a_token_more_costs_as_much_as_a_step_guesses_are_tried_now_and_then():
    guesses = guesses_of(costly(per_token=1e-2, per_step=1e-4), num_steps=5 * TRY_INTERVAL // 2)
    assert sum(length > 0 for length in guesses) == 2


def test_a_price_that_was_taken_for_too_high_is_found_out():
    """The only prompt took long, as first steps do: each of its tokens seems to cost as much as a step."""
    driver = drafting(longest=8, max_num_batched_tokens=256, num_blocks=200)
    cost, driver.model = driver.scheduler.budget.cost, FakeModel(4, Costs(per_token=1e-4, per_step=1e-2))
    for _ in range(8):
        cost.observe(1, 10, 0.01)
        cost.observe(20, 200, 0.4)
    assert cost.predict(2, 20) - cost.predict(1, 10) > 0.01
    guesses = guesses_of(driver, num_steps=TRY_INTERVAL + 30)
    assert sum(guesses[: TRY_INTERVAL - 1]) == 0 and guesses[-5:] == [8] * 5


def test_many_that_share_a_step_make_guesses_dearer():
    """Alone a guessed token costs a tenth of a step; among thirty it costs what any other token does."""
    alone = guesses_of(costly(per_token=1e-3, per_step=1e-2))
    crowded = guesses_of(costly(per_token=1e-3, per_step=1e-2, num_others=30))
    assert sum(crowded) < sum(alone) / 4


def test_a_guess_that_is_well_worth_its_price_makes_the_next_one_dearer():
    cost = StepCost()
    for num_tokens in (1, 30, 2, 60, 3, 1, 40, 20):
        cost.observe(num_tokens, 0, 0.01 + 0.001 * num_tokens)
    rate = _Rate(SimpleNamespace(num_tokens=4, num_attended=0, sampling=[None] * 4), cost)
    price = rate.token_cost(0)
    assert price == pytest.approx(LOGITS_SHARE * 0.001 * 4 / 0.014, rel=0.03)
    rate.add(3.0, 2 * price)
    assert rate.token_cost(0) == pytest.approx(LOGITS_SHARE * 0.001 * 7 / (0.014 + 2 * 0.001 * LOGITS_SHARE), rel=0.03)


def test_the_second_guess_of_a_step_is_shorter_than_the_first():
    driver = costly(per_token=1e-3, per_step=1e-2)
    sequences = [driver.add(num_prompt=4, max_tokens=40, top_k=1) for _ in range(2)]
    launch_draft(driver)
    driver.finish_step()
    for sequence in sequences:
        sequence.proposer.chance = 0.85
    first, second = driver.launch().chunks
    assert len(first.token_ids) > len(second.token_ids) > 1


def test_guesses_keep_the_step_within_the_target():
    for target, longest in ((0.02, 8), (0.0135, 2), (0.0105, 0)):
        assert max(guesses_of(costly(per_token=1e-3, per_step=1e-2, itl_target=target))) <= longest
