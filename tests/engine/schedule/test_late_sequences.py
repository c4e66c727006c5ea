"""Sequences whose masks are late sit steps out, or start later; no token and no block is lost."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from random import Random

import pytest

from app.contract.grammar import Grammar, GrammarKind
from app.engine.schedule.policy import make_policy
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.sequence import PAUSED, RUNNING, Sequence
from tests.engine.schedule.fake_model import Driver, make_request
from tests.engine.schedule.fake_tokens import num_words, reference
from tests.engine.schedule.open_requests import num_open

GRAMMARS = [Grammar(GrammarKind.REGEX, letter) for letter in "abcd"]


class FakeLate:
    """Says that the sequences with some grammars are late, and notes those that were prepared and that have ended.

    With `waits` only those are not late without a row that were prepared as the next one.
    """

    def __init__(self) -> None:
        self.grammars: set[Grammar] = set()
        self.ended: list[int] = []
        self.waits = False
        self._prepared: dict[int, tuple[Grammar, bool]] = {}

    def late(self) -> set[int]:
        return {each for each, (grammar, _) in self._prepared.items() if grammar in self.grammars}

    def prepare(self, sequence_id: int, sampling: RowSampling, token_ids: Many[int], *, is_next: bool) -> None:
        assert sampling.constraint is not None and sampling.constraint.grammar is not None
        self._prepared[sequence_id] = sampling.constraint.grammar, is_next

    def has_mask(self, sequence_id: int, num_tokens: int) -> bool:
        grammar, was_next = self._prepared[sequence_id]
        return grammar not in self.grammars and (was_next or not self.waits)

    def is_slow(self, sequence_id: int) -> bool:
        return sequence_id % 3 == 0

    def end(self, sequence_id: int) -> None:
        self.ended.append(sequence_id)


def add(driver: Driver, name: str, grammar: Grammar | None = None, **given: object) -> Sequence:
    request = make_request(name, **given)
    return driver.scheduler.add(replace(request, grammar=grammar)).sequences[0]


def test_late_sequences_sit_out_and_others_do_not():
    late = FakeLate()
    driver = Driver(late=late)
    first, second = (add(driver, f"r{i}", GRAMMARS[0], max_tokens=6) for i in range(2))
    third, plain = add(driver, "r2", GRAMMARS[1], max_tokens=6), add(driver, "r3", max_tokens=6)
    driver.steps(2)
    lengths = [len(each.output_token_ids) for each in (first, second, third, plain)]
    late.grammars = {GRAMMARS[0]}
    driver.steps(3)
    assert [len(each.output_token_ids) for each in (first, second)] == lengths[:2]
    assert [len(each.output_token_ids) for each in (third, plain)] == [length + 3 for length in lengths[2:]]
    assert first.group.status is second.group.status is RUNNING, "they keep their rows and blocks"
    late.grammars = set()
    driver.run(10)
    assert first.output_token_ids == reference(first.prompt_token_ids, 6, seed=first.request.params.seed)


def test_a_step_of_late_sequences_alone_is_none_and_the_next_one_has_them():
    late = FakeLate()
    driver = Driver(late=late)
    one = add(driver, "r1", GRAMMARS[0], n=2)
    driver.step()
    late.grammars = {GRAMMARS[0]}
    assert driver.step() is None and driver.scheduler.queues.has_ready
    late.grammars = set()
    plan = driver.step()
    assert plan is not None and len(plan.sampled) == 2 and not one.is_finished


def test_a_late_sequence_does_not_start_again_before_its_mask_is_there():
    late = FakeLate()
    driver = Driver(late=late)
    one = add(driver, "r1", GRAMMARS[0], max_tokens=6)
    driver.steps(2)
    driver.scheduler.preemption.preempt(one.group)
    late.grammars = {GRAMMARS[0]}
    driver.steps(2)
    assert one.group.status is not RUNNING and one.row is None
    late.grammars = set()
    driver.run(10)
    assert one.output_token_ids == reference(one.prompt_token_ids, 6, seed=one.request.params.seed)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_a_request_that_is_late_holds_up_none_behind_it(policy: str):
    """It starts before them as soon as it can."""
    late = FakeLate()
    driver = Driver(late=late, policy=make_policy(policy), max_num_seqs=2)
    add(driver, "r0", GRAMMARS[0], max_tokens=20, account="slow")
    driver.steps(2)
    late.grammars = {GRAMMARS[0]}
    given = {"max_tokens": 3, "account": "slow"}
    first = add(driver, "r1", GRAMMARS[0], arrival_time=1.0, **given)
    others = [add(driver, f"r{i}", arrival_time=float(i), **given) for i in (2, 3)]
    driver.run_until(lambda: others[0].is_finished)
    assert not first.output_token_ids and not others[1].is_finished
    late.grammars = set()
    driver.run(60)
    assert first.is_finished and others[1].is_finished


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_the_masks_of_the_next_request_are_made_first(policy: str):
    """Those of all others may have to wait for room."""
    late = FakeLate()
    late.waits = True
    driver = Driver(late=late, policy=make_policy(policy), max_num_seqs=1)
    sequences = [add(driver, f"r{i}", GRAMMARS[0], max_tokens=2, arrival_time=float(i), account="a") for i in range(3)]
    driver.step()
    assert [late._prepared[each.id][1] for each in sequences] == [True, True, False], "the first has started"
    driver.run(20)
    assert all(each.is_finished for each in sequences)


def test_a_resumed_request_runs_again_when_its_mask_is_there():
    late = FakeLate()
    driver = Driver(late=late)
    one = add(driver, "r1", GRAMMARS[0], max_tokens=6)
    driver.steps(2)
    driver.scheduler.pause("r1")
    driver.scheduler.resume("r1")
    late.grammars = {GRAMMARS[0]}
    assert driver.step() is None and one.group.status is PAUSED
    late.grammars = set()
    driver.run(10)
    assert one.output_token_ids == reference(one.prompt_token_ids, 6, seed=one.request.params.seed)


def test_no_seats_are_taken_for_a_request_that_is_late():
    """It could not use them."""
    late = FakeLate()
    driver = Driver(late=late, policy=make_policy("fair"), max_num_seqs=2)
    running = [add(driver, f"r{i}", max_tokens=8, account="many") for i in range(2)]
    driver.steps(2)
    late.grammars = {GRAMMARS[0]}
    add(driver, "r9", GRAMMARS[0], account="few")
    driver.steps(3)
    assert [each.group.status for each in running] == [RUNNING] * 2


def test_the_end_of_each_sequence_with_a_grammar_is_told_once():
    late = FakeLate()
    driver = Driver(late=late)
    groups = [add(driver, f"r{i}", GRAMMARS[0] if i else None, n=2, max_tokens=3 + i).group for i in range(3)]
    ids = [each.id for group in groups[1:] for each in group.sequences]
    driver.steps(2)
    driver.scheduler.abort("r2")
    driver.run(20)
    assert sorted(late.ended) == sorted(ids)


@pytest.mark.parametrize("seed", range(40))
def test_random_late_grammars_change_no_token(seed: int):
    """With too few blocks, several choices, chunks of prompts, drafts, pauses, aborts and steps that run ahead."""
    rng, late = Random(seed), FakeLate()
    driver = Driver(
        late=late,
        policy=make_policy(rng.choice(["fcfs", "fair"])),
        num_blocks=rng.choice([24, 32, 64]),
        block_size=rng.choice([1, 2, 4]),
        max_num_seqs=rng.choice([4, 8]),
        max_num_batched_tokens=rng.choice([6, 64]),
        run_ahead=rng.choice([0, 0, 1]),
        num_host_blocks=rng.choice([0, 32]),
        speculative_ngram=rng.choice([0, 3]),
    )
    sequences: list[Sequence] = []
    for number in range(14):
        grammar = rng.choice([None, *GRAMMARS])
        fields = {"num_prompt": rng.randint(1, 8), "max_tokens": rng.randint(1, 7), "n": rng.choice([1, 1, 2])}
        given = {**fields, "account": rng.choice("xyz"), "top_k": rng.choice([None, 2]), "arrival_time": float(number)}
        add_one = add(driver, f"r{number}", grammar, **given)
        sequences += add_one.group.sequences
        for _ in range(rng.randint(0, 4)):
            step(driver, late, rng)
        known = rng.choice(sequences).request.id
        rng.choice([driver.scheduler.pause, driver.scheduler.resume, lambda _: None])(known)
        if rng.random() < 0.05:
            driver.scheduler.abort(known)
    for each in sequences:
        driver.scheduler.resume(each.request.id)
    for _ in range(2000):
        if not num_open(driver.scheduler):
            break
        step(driver, late, rng)
    assert not num_open(driver.scheduler), "every request ends"
    while driver.in_flight:
        driver.finish_step()
    for each in sequences:
        params = each.request.params
        expected = reference(each.prompt_token_ids, params.max_tokens, each.choice, params.seed, num_words(params))
        assert each.output_token_ids == expected[: len(each.output_token_ids)]
    assert sum(len(each.output_token_ids) == each.request.params.max_tokens for each in sequences) > len(sequences) / 2
    assert driver.scheduler.tables.pool.num_free == driver.scheduler.limits.num_blocks
    constrained = {each.id for each in sequences if each.request.grammar is not None}
    assert set(late.ended) == constrained


def step(driver: Driver, late: FakeLate, rng: Random) -> None:
    """A step in which some grammars are late; none of their sequences is in it."""
    late.grammars = set(rng.sample(GRAMMARS, rng.choice([0, 0, 1, 2, 4])))
    resting = {
        one.id for group in driver.scheduler._groups.values() if group.request.grammar in late.grammars
        for one in group.open
    }  # fmt: skip
    plan = driver.launch()
    if plan is not None:
        assert resting.isdisjoint(chunk.sequence_id for chunk in plan.chunks)
        assert resting.isdisjoint(one.sequence_id for one in plan.sampled)
        assert resting.isdisjoint(start.sequence_id for start in plan.row_starts)
    depth = driver.scheduler.limits.run_ahead if plan else 0
    while len(driver.in_flight) > depth:
        driver.finish_step()
    driver.scheduler.check_integrity()
