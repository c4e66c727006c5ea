"""Forced tokens as drafts: which rows are asked, how many tokens they get, and what becomes of wrong ones.

With `top_k=1` an output is token 1 again and again (see `fake_tokens`), so a grammar can force it. The driver compares
every output with the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.speculation.forced_tokens import MAX_FORCED
from app.engine.schedule.step_cost import StepCost
from tests.engine.schedule.fake_groups import add_prompt, new_tokens
from tests.engine.schedule.fake_model import Costs, Driver, FakeModel
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID
from tests.engine.schedule.open_requests import num_open


class Grammars:
    """Forces the same tokens in some rows, always; notes the rows that are asked."""

    def __init__(self, token_ids: Sequence[int], rows: range = range(1, 100)) -> None:
        self.token_ids, self.rows, self.asked = token_ids, rows, []

    def forced(self, row: int) -> Sequence[int]:
        self.asked.append(row)
        return self.token_ids


def make_driver(grammars: Grammars, **limits: float) -> Driver:
    """A driver whose scheduler asks `grammars`."""
    driver = Driver(**limits)
    driver.scheduler = Scheduler(driver.scheduler.limits, eos_token_ids=(EOS_TOKEN_ID,), forced=grammars)
    return driver


def counts(driver: Driver) -> tuple[int, int, int, int]:
    """Drafts, their tokens, accepted and forced ones."""
    found = driver.scheduler.speculation.counts
    return found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens, found.num_forced_tokens


def test_forced_tokens_are_gained_in_one_step():
    driver = make_driver(Grammars([1, 1, 1]))
    driver.add(max_tokens=41, top_k=1)
    assert driver.run(max_steps=12) == 1 + 10
    assert counts(driver) == (10, 30, 30, 30)


def test_only_rows_with_a_grammar_are_asked():
    grammars = Grammars([1], rows=range(2, 3))
    driver = make_driver(grammars)
    first, second = driver.add(max_tokens=20, top_k=1), driver.add(max_tokens=20, top_k=1)
    driver.step()
    assert new_tokens(driver.step()) == {first.id: 1, second.id: 2}
    driver.run(max_steps=30)
    assert set(grammars.asked) == {2}


def test_without_a_grammar_nothing_is_asked_nor_predicted(monkeypatch: pytest.MonkeyPatch):
    driver = make_driver(Grammars([1], rows=range(0)))
    monkeypatch.setattr(StepCost, "predict", None)
    driver.add(max_tokens=9, top_k=1)
    assert driver.run(max_steps=10) == 9 and counts(driver) == (0, 0, 0, 0)


def test_wrong_tokens_are_rejected_and_change_nothing():
    driver = make_driver(Grammars([1, 2, 1]))
    driver.add(max_tokens=21, top_k=1)
    assert driver.run(max_steps=12) == 1 + 10
    drafts, tokens, accepted, forced = counts(driver)
    assert accepted == forced == drafts == 10 and tokens > 20


@pytest.mark.parametrize(
    ("missing", "end", "has_failed"),
    [((2, 3), None, False), ((1,), None, True), ((0, 1), None, True), ((1, 2, 3), 0, False), ((0,), 0, True)],
)
def test_samples_behind_a_wrong_token_or_an_end_are_no_failures(
    missing: tuple[int, ...], end: int | None, has_failed: bool
):
    """The first draft token is right and the second one is wrong, so the samples 0 and 1 are valid."""
    driver = make_driver(Grammars([1, 2, 1]))
    sequence = driver.add(max_tokens=40, top_k=1)
    driver.step()
    driver.launch()
    _plan, result = driver.in_flight[-1]
    samples = [
        sample._replace(token_id=-2 if index in missing else sample.token_id, ends=index == end)
        for index, sample in enumerate(result.samples)
    ]
    assert len(samples) == 4
    failed = driver.scheduler.groups_without_token(replace(result, samples=tuple(samples)))
    assert failed == ([sequence.group] if has_failed else [])
    driver.scheduler.finish(sequence)
    assert driver.scheduler.groups_without_token(replace(result, samples=tuple(samples))) == []


def test_a_sequence_has_a_limited_number_of_forced_tokens():
    driver = make_driver(Grammars([1] * 99))
    sequence = driver.add(max_tokens=60, top_k=1)
    driver.step()
    assert new_tokens(driver.step()) == {sequence.id: 1 + min(MAX_FORCED, 8 - 1)}  # eight rows of logits
    wide = make_driver(Grammars([1] * 99), max_num_seqs=40)
    sequence = wide.add(max_tokens=60, top_k=1)
    wide.step()
    assert new_tokens(wide.step()) == {sequence.id: 1 + MAX_FORCED}


def test_no_draft_goes_beyond_the_last_token():
    for max_tokens in range(2, 12):
        driver = make_driver(Grammars([1] * 5))
        sequence = driver.add(max_tokens=max_tokens, top_k=1)
        while num_open(driver.scheduler):
            plan = driver.launch()
            assert all(chunk.start + len(chunk.token_ids) <= sequence.max_slots for chunk in plan.chunks)
            driver.finish_step()


def test_forced_tokens_use_only_rows_that_no_sequence_has():
    driver = make_driver(Grammars([1] * 9), max_num_seqs=4)
    for _ in range(3):
        driver.add(max_tokens=30, top_k=1)
    most = 0
    while num_open(driver.scheduler):
        most = max(most, len(driver.step().logit_rows))
    assert most == 4
    full = make_driver(Grammars([1] * 9), max_num_seqs=2)
    for _ in range(2):
        full.add(max_tokens=10, top_k=1)
    full.run(max_steps=11)
    assert counts(full) == (0, 0, 0, 0)


def test_they_stay_within_the_time_of_a_step():
    driver = make_driver(Grammars([1] * 9), itl_target=0.05, max_num_seqs=32)
    driver.model = FakeModel(driver.scheduler.limits.block_size, Costs(per_token=0.01))
    driver.add(max_tokens=200, top_k=1)
    longest = []
    while num_open(driver.scheduler):
        plan = driver.step()
        if driver.scheduler.budget.cost.num_steps > 12:
            longest.append(plan.num_tokens)
    assert max(longest) == 5


def test_a_step_with_a_prompt_has_none():
    driver = make_driver(Grammars([1]), max_num_batched_tokens=8)
    driver.add(max_tokens=60, top_k=1)
    driver.steps(2)
    driver.add(num_prompt=40, max_tokens=1)
    while len(driver.scheduler.queues.running) + driver.scheduler.queues.num_waiting == 2:
        assert not driver.step().num_draft_tokens
    assert driver.step().num_draft_tokens == 1


def test_a_row_is_not_asked_in_the_step_that_gives_it_to_its_sequence():
    """Whoever had the row before may have left a grammar there."""
    grammars = Grammars([1])
    driver = make_driver(grammars)
    driver.add(max_tokens=40, top_k=1)
    driver.steps(3)
    driver.scheduler.pause("r1")
    assert driver.step() is None
    driver.scheduler.resume("r1")
    grammars.asked.clear()
    plan = driver.step()
    assert len(plan.row_starts) == 1 and not plan.num_draft_tokens and not grammars.asked
    assert driver.step().num_draft_tokens == 1


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_sequence_with_a_step_in_flight_is_not_asked(run_ahead: int):
    driver = make_driver(Grammars([1]), run_ahead=run_ahead)
    driver.add(max_tokens=20, top_k=1)
    for _ in range(10):
        assert not driver.step().num_draft_tokens
    while driver.in_flight:
        driver.finish_step()
    assert driver.launch().num_draft_tokens == 1, "it is the only one, whatever might run ahead"


def test_none_while_a_culprit_is_searched():
    driver = make_driver(Grammars([1]))
    driver.add(max_tokens=20, top_k=1)
    driver.steps(2)
    driver.scheduler.restrict(["r1"])
    assert not driver.step().num_draft_tokens
    driver.scheduler.restrict(None)
    assert driver.step().num_draft_tokens == 1


def test_forced_tokens_come_before_ngrams_which_do_not_learn_from_them():
    driver = make_driver(Grammars([1, 2], rows=range(1, 2)), speculative_ngram=3, max_num_seqs=4)
    forced, other = driver.add(max_tokens=40, top_k=1), add_prompt(driver, "b", [1] * 9, 40, top_k=1)
    driver.step()
    assert new_tokens(driver.step()) == {forced.id: 3, other.id: 3}
    assert forced.proposer is None and other.proposer.chance > 0.6


def test_a_failed_step_loses_no_token():
    driver = make_driver(Grammars([1, 1]))
    sequence = driver.add(max_tokens=20, top_k=1)
    driver.step()
    assert driver.launch().num_draft_tokens == 2
    driver.abandon()
    driver.scheduler.check_integrity()
    assert len(sequence.output_token_ids) == 1
    driver.run(max_steps=15)
    assert len(sequence.output_token_ids) == 20
