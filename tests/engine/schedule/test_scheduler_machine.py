"""The scheduler under any order of calls, compared with a small model.

S1-S10 are the rules of the scheduler (docs/reliability.md): one state per request (S1), budgets (S2), no more computed
than tokens (S3), the expected tokens in order (S4, S13), liveness (S5), no overtaking (S6), the choice of victims (S7),
accepted requests fit alone (S8), abort at any time (S9), a token between two preemptions (S10). `check_integrity` and
the fake model check blocks, rows, fences, copies and tokens after every call. Realistic orders of calls, in virtual
time and with a search for culprits, are tested by tests/simulation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.contract.errors import KVCapacityExceeded
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.sequence import (
    FINISHED,
    PAUSED,
    PREEMPTED,
    RUNNING,
    SWAPPED,
    WAITING,
    Sequence,
    SequenceStatus,
)
from app.engine.schedule.step_plan import StepPlan, StepResult
from tests.cases import examples
from tests.contract.blocks_needed import num_blocks_needed
from tests.engine.schedule.fake_model import Driver
from tests.engine.schedule.fake_tokens import num_words, reference

MAX_PROMPT, MAX_OUTPUT = 8, 32
AWAY = (PREEMPTED, SWAPPED)
any_index = st.integers(0, 2**16)
a_kind = st.sampled_from(["one", "one", "two", "three", "beams"])
KINDS = {
    "one": {},
    "two": {"n": 2},
    "three": {"n": 1, "best_of": 3},
    "beams": {"n": 2, "use_beam_search": True, "beam_width": 3},
}
TOLD = [(), (), (5, 5), (0, 3), (3, 0), (1, 9), (20, 2), (2, None), (0, None)]
"""Tokens of choices that were told before; None: the choice has ended."""


@dataclass
class Expected:
    """The expected state of one request; its initial sequences, and `num_tokens` by their ids, not for beams."""

    group: SequenceGroup
    sequences: list[Sequence]
    is_ready: bool = True
    num_tokens: dict[int, int] = field(default_factory=dict)
    num_gained: int = 0
    num_gained_at_restart: int = -1

    @property
    def is_live(self) -> bool:
        return bool(self.group.open)


@dataclass
class Snapshot:
    """The state of a request before a step is scheduled."""

    expected: Expected
    status: SequenceStatus
    ready: bool
    is_protected: bool
    num_preemptions: int

    @property
    def group(self) -> SequenceGroup:
        return self.expected.group

    @property
    def was_victim(self) -> bool:
        return self.group.num_preemptions > self.num_preemptions


def accepted_samples(plan: StepPlan, result: StepResult) -> Iterator[int]:
    """Yield the sequence of each sample, except for those after a rejected draft token."""
    sampled = {sample.sequence_id: [] for sample in result.samples}
    for sample in result.samples:
        sampled[sample.sequence_id].append(sample.token_id)
    drafts = {chunk.sequence_id: chunk.token_ids[-len(sampled.get(chunk.sequence_id, ())) :] for chunk in plan.chunks}
    for sequence_id, tokens in sampled.items():
        yield sequence_id
        for draft, token in zip(drafts.get(sequence_id, ())[1:], tokens, strict=False):
            if draft != token:
                break
            yield sequence_id


def as_told(told: tuple[int | None, ...], kind: str, max_tokens: int, n: int) -> list[int | None]:
    """What can be told of a request: at least a token is left, and of ranked choices nothing is told."""
    if kind not in ("one", "two"):
        return []
    return [None if count is None else min(count, max_tokens - 1) for count in told[:n]]


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, launches, updates, aborts, pauses, resumes, finishes, preempts, evicts and abandons in any order."""

    @initialize(
        num_blocks=st.sampled_from([12, 16, 8, 6, 24, 32, 64, 4, 1]),
        block_size=st.sampled_from([2, 1, 4]),
        max_num_seqs=st.sampled_from([6, 4, 3, 1]),
        budget=st.sampled_from([6, 16, 3, 1]),
        run_ahead=st.sampled_from([0, 0, 1, 2]),
        num_host_blocks=st.sampled_from([0, 0, 4, 32]),
        is_caching=st.sampled_from([True, True, False]),
        longest_draft=st.sampled_from([0, 4]),
    )
    def begin(
        self, num_blocks, block_size, max_num_seqs, budget, run_ahead, num_host_blocks, is_caching, longest_draft
    ):
        self.driver = Driver(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            run_ahead=run_ahead,
            num_host_blocks=num_host_blocks,
            enable_prefix_caching=is_caching,
            speculative_ngram=longest_draft,
        )
        self.scheduler = self.driver.scheduler
        self.num_blocks, self.block_size, self.run_ahead, self.budget = num_blocks, block_size, run_ahead, budget
        self.requests: list[Expected] = []

    @property
    def live(self) -> list[Expected]:
        return [expected for expected in self.requests if expected.is_live]

    def pick(self, index: int) -> Expected:
        return self.requests[index % len(self.requests)]

    # --- Calls ----------------------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(
            st.tuples(st.integers(1, MAX_PROMPT), st.integers(1, MAX_OUTPUT), a_kind), min_size=1, max_size=4
        ),
        arrival_time=st.floats(0, 9),
        salt=st.sampled_from([None, None, "a"]),
        num_words=st.sampled_from([None, 1, 2]),
        told=st.sampled_from(TOLD),
    )
    def add(self, sizes, arrival_time, salt, num_words, told):
        seats = self.scheduler.limits.max_running
        for num_prompt, max_tokens, kind in sizes:
            params = KINDS[kind] if seats >= 3 else {}
            if not params.get("use_beam_search"):
                params = {**params, "top_k": num_words}
            width = params.get("beam_width") or params.get("best_of") or params.get("n", 1)
            while max_tokens and not self.fits(num_prompt, max_tokens, width):
                max_tokens -= 1
            if max_tokens:
                given = {**params, "cache_salt": salt, "told": as_told(told, kind, max_tokens, params.get("n", 1))}
                leader = self.driver.add(num_prompt, max_tokens, arrival_time, **given)
                sequences = list(leader.group.sequences)
                num_told = {one.id: len(one.output_token_ids) for one in sequences}
                self.requests.append(Expected(leader.group, sequences, num_tokens=num_told))
            while self.fits(num_prompt, max_tokens, width):
                max_tokens += 1
            with pytest.raises(KVCapacityExceeded):  # S8
                self.driver.add(num_prompt, max(max_tokens, 1), arrival_time, **params)

    def fits(self, num_prompt: int, max_tokens: int, width: int) -> bool:
        return num_blocks_needed(num_prompt, num_prompt + max_tokens - 1, width, self.block_size) <= self.num_blocks

    @precondition(lambda self: len(self.driver.in_flight) <= self.run_ahead)
    @rule()
    def launch(self):
        before = [
            Snapshot(e, e.group.status, e.group.ready, e.group.is_protected, e.group.num_preemptions) for e in self.live
        ]
        can_run = self.scheduler.queues.has_ready and not self.driver.in_flight
        plan = self.driver.launch()
        assert plan is not None or not can_run  # S5
        self.check_victims(before)
        self.check_starts(before)
        if plan is not None:
            self.check_plan(plan)

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def finish_step(self):
        plan, result = self.driver.in_flight[0]
        by_id = {one.id: (e, one) for e in self.live if e.group.search is None for one in e.group.open}
        gaining = [by_id[sequence_id] for sequence_id in accepted_samples(plan, result) if sequence_id in by_id]
        assert self.driver.finish_step() == [sequence for _, sequence in gaining]  # none lost, none duplicated
        for expected, sequence in gaining:
            expected.num_tokens[sequence.id] = expected.num_tokens.get(sequence.id, 0) + 1
            expected.num_gained += 1
        for expected in self.live:
            if expected.group.search is not None:
                expected.num_gained = len(expected.group.open[0].output_token_ids)

    @rule(count=st.integers(1, 6))
    def steps(self, count):
        for _ in range(count):
            if len(self.driver.in_flight) > self.run_ahead:
                self.finish_step()
                self.records_are_consistent()
            self.launch()
            self.records_are_consistent()

    @precondition(lambda self: self.requests)
    @rule(index=any_index)
    def abort(self, index):
        expected = self.pick(index)
        was_live = expected.is_live
        found = self.scheduler.abort(expected.group.request.id)
        assert found is (expected.group if was_live else None) and not expected.is_live

    @precondition(lambda self: self.requests)
    @rule(index=any_index, choice=st.integers(0, 2))
    def finish(self, index, choice):
        """One of the choices ends, or again; never while its group still computes the prompt."""
        expected = self.pick(index)
        group = expected.group
        if group.search is None and not (group.is_folded and group.status in (RUNNING, PAUSED)):
            sequence = expected.sequences[choice % len(expected.sequences)]
            self.scheduler.finish(sequence)
            assert sequence.is_finished and sequence not in group.open

    @precondition(lambda self: self.live)
    @rule(index=any_index)
    def pause(self, index):
        running = [expected for expected in self.live if expected.group.status is RUNNING] or self.live
        expected = running[index % len(running)]
        self.scheduler.pause(expected.group.request.id)
        expected.is_ready = False

    @precondition(lambda self: self.requests)
    @rule(index=any_index)
    def resume(self, index):
        expected = self.pick(index)
        self.scheduler.resume(expected.group.request.id)
        if expected.is_live:
            expected.is_ready = True

    @precondition(lambda self: self.requests and not self.driver.in_flight)
    @rule(index=any_index)
    def preempt(self, index):
        """As in `schedule`, whose plan then has the swap-outs."""
        group = self.pick(index).group
        if group.status in (RUNNING, PAUSED):
            self.scheduler.preemption.preempt(group)
            assert group.status in AWAY
        elif group.status is not SWAPPED:  # whose blocks may still be dropped
            with pytest.raises(ValueError):
                self.scheduler.preemption.preempt(group)

    @rule(index=any_index)
    def evict(self, index):
        """Evict a cached block, or all, early."""
        if index % 10:
            self.scheduler.tables.cache.remove(1 + index % self.num_blocks)
        else:
            self.scheduler.tables.cache.clear()
            self.scheduler.tables.swap.cache.clear()

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def abandon(self):
        """All steps in flight fail: their groups restart, and no token is lost."""
        plan, _ = self.driver.in_flight[0]
        ids = {one.sequence_id for one in (*plan.chunks, *plan.sampled)}
        failed = [e.group for e in self.live if any(one.id in ids for one in e.group.open)]
        returned = self.driver.abandon()
        assert set(map(id, failed)) <= set(map(id, returned))
        assert all(group.status in AWAY for group in returned)
        for expected in self.live:
            if expected.group.status in AWAY:
                expected.num_gained_at_restart = -1

    # --- Rules ----------------------------------------------------------------------------------------------------

    def check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.budget  # S2
        running = {one.id for e in self.live if e.group.status is RUNNING for one in e.group.open}
        assert {chunk.sequence_id for chunk in plan.chunks} <= running

    def check_victims(self, before: list[Snapshot]) -> None:
        running = [expected.group for expected in self.live if expected.group.status is RUNNING]
        kept_blocks = [one for one in before if one.status in (RUNNING, PAUSED) and not one.was_victim]
        for victim in (one for one in before if one.was_victim):
            key = victim.group.sort_key
            assert victim.expected.num_gained > victim.expected.num_gained_at_restart  # S10
            if victim.status is RUNNING:  # S7
                assert not any(expected.group.status is PAUSED for expected in self.live)
                assert min(group.sort_key for group in running) < key
                assert all(one.is_protected for one in kept_blocks if one.group.sort_key > key)
            elif not victim.ready:
                paused = [one.group for one in kept_blocks if one.status is PAUSED and not one.ready]
                assert all(group.sort_key < key for group in paused)

    def check_starts(self, before: list[Snapshot]) -> None:
        outside = [one for one in before if one.status in (WAITING, *AWAY)]
        waiting = [one.group for one in outside if one.group.status in (WAITING, *AWAY) and one.group.ready]
        for one in outside:  # S6
            if one.group.status is RUNNING:
                assert all(one.group.sort_key < other.sort_key for other in waiting)
        for one in before:
            if one.group.status is RUNNING and (one.status in AWAY or one.was_victim):
                one.expected.num_gained_at_restart = one.expected.num_gained

    @invariant()
    def records_are_consistent(self):
        self.scheduler.check_integrity()
        live = self.live
        assert len(
            self.scheduler.queues.running
        ) + self.scheduler.queues.num_waiting + self.scheduler.num_paused == len(live)
        seats = sum(len(e.group.open) for e in live if e.group.status is RUNNING)
        assert seats <= self.scheduler.limits.max_running  # S2
        for expected in self.requests:
            group = expected.group
            assert (group.status is not FINISHED) == expected.is_live  # S1, S9
            for sequence in expected.sequences if group.search is None else ():
                assert len(sequence.output_token_ids) == expected.num_tokens.get(sequence.id, 0)
            if expected.is_live:
                assert group.ready == expected.is_ready
                assert group.ready or group.status is not RUNNING or group.is_protected
                assert group.status is not PAUSED or not group.ready or self.scheduler.queues.has_ready

    def teardown(self):
        """All requests end in a bounded number of steps, with the expected tokens, and all blocks are free (S5)."""
        if not hasattr(self, "driver"):
            return
        live = self.live
        unfinished = [one for e in live if e.group.search is None for one in e.group.open]
        for expected in live:
            self.scheduler.resume(expected.group.request.id)
        if len(self.driver.in_flight) > self.run_ahead:
            self.driver.finish_step()
        worst = MAX_OUTPUT * (3 * (MAX_PROMPT + MAX_OUTPUT) // self.budget + 3)
        self.driver.run(max_steps=(len(live) + 1) * worst * (1 + self.run_ahead))
        for sequence in unfinished:
            params = sequence.request.params
            given = (params.max_tokens, sequence.choice, params.seed, num_words(params))
            expected_ids = reference(sequence.prompt_token_ids, *given)
            assert sequence.output_token_ids == expected_ids
        assert self.scheduler.tables.pool.num_free == self.num_blocks


class LongSchedulerMachine(SchedulerMachine):
    """The same calls, more often."""


SchedulerMachine.TestCase.settings = settings(max_examples=examples(70), stateful_step_count=40)
LongSchedulerMachine.TestCase.settings = settings(max_examples=500, stateful_step_count=40)
test_no_order_of_calls_violates_a_rule = SchedulerMachine.TestCase
test_no_order_of_calls_violates_a_rule_in_a_long_run = pytest.mark.long(LongSchedulerMachine.TestCase)


@pytest.mark.parametrize("seed", range(24))
def test_no_rule_is_violated_with_too_few_blocks(seed):
    """The same calls with too many requests for the pool: most steps lack a block."""
    rng = Random(seed)
    machine = SchedulerMachine()
    host, is_caching = rng.choice([0, 8, 64]), rng.random() < 0.7
    num_blocks, block_size, budget = rng.choice([16, 24, 32]), rng.choice([1, 2, 2]), rng.choice([3, 6])
    machine.begin(num_blocks, block_size, 6, budget, seed % 3, host, is_caching, seed % 2 * 4)
    for _ in range(150):
        if len(machine.live) < 8:
            size = (rng.randint(1, MAX_PROMPT), rng.randint(4, MAX_OUTPUT), rng.choice(["one", "one", *KINDS]))
            salt, num_words = rng.choice([None, "a"]), rng.choice([None, 1, 2])
            machine.add([size], float(len(machine.requests)), salt, num_words, rng.choice(TOLD))
        call = rng.choices(
            [
                machine.steps,
                machine.pause,
                machine.resume,
                machine.preempt,
                machine.abort,
                machine.evict,
                machine.abandon,
            ],
            [60, 8, 30, 4, 2, 3, 1],
        )[0]
        if call == machine.steps:
            call(rng.randint(1, 3))
        elif call == machine.abandon:
            if machine.driver.in_flight:
                call()
        elif call != machine.preempt or not machine.driver.in_flight:
            call(rng.randrange(-8, 0))  # one of the newest
        machine.records_are_consistent()
    machine.teardown()
