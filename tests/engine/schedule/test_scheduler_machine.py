"""The scheduler under any order of calls: a state machine against a small model of what must be true.

S1-S10 are the promises of the scheduler: one state each (S1), budgets (S2), never more computed than there is (S3),
the right tokens in order (S4, S13), liveness (S5), no overtaking (S6), the choice of victims (S7), what is taken fits
alone (S8), abort at any time (S9), a token between two preemptions (S10). `check_integrity` and the fake model watch
blocks, rows, fences and tokens after every call.
"""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.engine.schedule.plan import StepPlan
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Sequence, SequenceStatus
from app.errors import KVCapacityExceeded
from tests.engine.schedule.fake_model import Driver, reference

MAX_PROMPT, MAX_ANSWER = 8, 32
any_index = st.integers(0, 2**16)


@dataclass
class Expected:
    """What the model knows of one request."""

    sequence: Sequence
    is_live: bool = True
    is_ready: bool = True
    num_tokens: int = 0
    num_tokens_at_restart: int = -1


@dataclass
class Before:
    """A sequence before a step was scheduled."""

    expected: Expected
    status: SequenceStatus
    ready: bool
    num_preemptions: int

    @property
    def sequence(self) -> Sequence:
        return self.expected.sequence

    @property
    def was_victim(self) -> bool:
        return self.sequence.num_preemptions > self.num_preemptions


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, launches, settles, aborts, pauses, resumes, finishes, preempts and abandons in any order."""

    @initialize(
        num_blocks=st.sampled_from([12, 16, 8, 6, 24, 32, 64, 4, 1]),
        block_size=st.sampled_from([2, 1, 4]),
        max_num_seqs=st.sampled_from([6, 4, 2, 1]),
        budget=st.sampled_from([6, 16, 3, 1]),
        run_ahead=st.sampled_from([0, 0, 1, 2]),
    )
    def begin(self, num_blocks, block_size, max_num_seqs, budget, run_ahead):
        self.limits = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": max_num_seqs}
        self.driver = Driver(**self.limits, max_num_batched_tokens=budget, run_ahead=run_ahead)
        self.scheduler = self.driver.scheduler
        self.budget, self.run_ahead = budget, run_ahead
        self.requests: list[Expected] = []

    @property
    def live(self) -> list[Expected]:
        return [expected for expected in self.requests if expected.is_live]

    def pick(self, index: int) -> Expected:
        return self.requests[index % len(self.requests)]

    # --- Calls ----------------------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, MAX_PROMPT), st.integers(1, MAX_ANSWER)), min_size=1, max_size=4),
        arrival_time=st.floats(0, 9),
    )
    def add(self, sizes, arrival_time):
        num_slots = self.limits["num_blocks"] * self.limits["block_size"]
        for num_prompt, max_tokens in sizes:
            if num_prompt <= num_slots:
                max_tokens = min(max_tokens, num_slots + 1 - num_prompt)
                self.requests.append(Expected(self.driver.add(num_prompt, max_tokens, arrival_time)))
            with pytest.raises(KVCapacityExceeded):  # S8
                self.driver.add(num_prompt, num_slots + 2 - min(num_prompt, num_slots), arrival_time)

    @precondition(lambda self: len(self.driver.in_flight) <= self.run_ahead)
    @rule()
    def launch(self):
        before = [Before(e, e.sequence.status, e.sequence.ready, e.sequence.num_preemptions) for e in self.live]
        can_run = self.scheduler.has_ready_work and not self.driver.in_flight
        plan = self.driver.launch()
        assert plan is not None or not can_run  # S5
        self.check_victims(before)
        self.check_starts(before)
        if plan is not None:
            self.check_plan(plan)

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def settle(self):
        _, result = self.driver.in_flight[0]
        by_id = {expected.sequence.id: expected for expected in self.live}
        gaining = [by_id[sample.sequence_id] for sample in result.samples if sample.sequence_id in by_id]
        assert self.driver.settle() == [expected.sequence for expected in gaining]  # none lost, none doubled
        for expected in gaining:
            expected.num_tokens += 1
            expected.is_live = expected.num_tokens < expected.sequence.request.params.max_tokens

    @rule(count=st.integers(1, 6))
    def steps(self, count):
        for _ in range(count):
            if len(self.driver.in_flight) > self.run_ahead:
                self.settle()
                self.all_books_are_right()
            self.launch()
            self.all_books_are_right()

    @precondition(lambda self: self.requests)
    @rule(index=any_index)
    def abort(self, index):
        expected = self.pick(index)
        found = self.scheduler.abort(expected.sequence.request.id)
        assert found is (expected.sequence if expected.is_live else None)
        expected.is_live = False

    @precondition(lambda self: self.requests)
    @rule(index=any_index)
    def finish(self, index):
        expected = self.pick(index)
        self.scheduler.finish(expected.sequence)
        expected.is_live = False

    @precondition(lambda self: self.live)
    @rule(index=any_index)
    def pause(self, index):
        running = [expected for expected in self.live if expected.sequence.status is RUNNING] or self.live
        expected = running[index % len(running)]
        self.scheduler.pause(expected.sequence.request.id)
        expected.is_ready = False

    @precondition(lambda self: self.requests)
    @rule(index=any_index)
    def resume(self, index):
        expected = self.pick(index)
        self.scheduler.resume(expected.sequence.request.id)
        if expected.is_live:
            expected.is_ready = True

    @precondition(lambda self: self.requests)
    @rule(index=any_index)
    def preempt(self, index):
        sequence = self.pick(index).sequence
        if sequence.status in (RUNNING, PAUSED):
            self.scheduler.preempt(sequence)
            assert sequence.status is PREEMPTED
        else:
            with pytest.raises(ValueError):
                self.scheduler.preempt(sequence)

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def abandon(self):
        plan, _ = self.driver.in_flight.popleft()
        self.driver.model.done(plan.step)
        ids = {chunk.sequence_id for chunk in plan.chunks}
        failed = [expected for expected in self.live if expected.sequence.id in ids]
        returned = self.scheduler.abandon(plan)
        assert {sequence.id for sequence in returned} == {expected.sequence.id for expected in failed}
        for expected in failed:
            expected.is_live = False

    # --- What must be true ----------------------------------------------------------------------------------------

    def check_plan(self, plan: StepPlan) -> None:
        assert 0 < plan.num_tokens <= self.budget  # S2
        running = {e.sequence.id for e in self.live if e.sequence.status is RUNNING}
        assert {chunk.sequence_id for chunk in plan.chunks} <= running

    def check_victims(self, before: list[Before]) -> None:
        running = [expected.sequence for expected in self.live if expected.sequence.status is RUNNING]
        ran_on = [one.sequence for one in before if one.status in (RUNNING, PAUSED) and not one.was_victim]
        for victim in (one for one in before if one.was_victim):
            key = victim.sequence.sort_key
            assert victim.expected.num_tokens > victim.expected.num_tokens_at_restart  # S10
            if victim.status is RUNNING:  # S7
                assert self.scheduler.num_paused == 0
                assert min(sequence.sort_key for sequence in running) < key
                assert all(s.is_protected for s in ran_on if s.sort_key > key)
            elif not victim.ready:
                assert all(s.sort_key < key for s in ran_on if s.status is PAUSED and not s.ready)

    def check_starts(self, before: list[Before]) -> None:
        started = [one for one in before if one.status is WAITING and one.sequence.status is RUNNING]
        ready = [expected.sequence for expected in self.live if expected.sequence.ready]
        for one in started:  # S6
            assert all(one.sequence.sort_key < s.sort_key for s in ready if s.status is WAITING)
            assert not any(s.status is PREEMPTED for s in ready)
        for one in before:
            if one.sequence.status is RUNNING and (one.status is PREEMPTED or one.was_victim):
                one.expected.num_tokens_at_restart = one.expected.num_tokens

    @invariant()
    def all_books_are_right(self):
        self.scheduler.check_integrity()
        live = self.live
        counts = (self.scheduler.num_running, self.scheduler.num_waiting, self.scheduler.num_paused)
        assert sum(counts) == len(live)
        assert self.scheduler.has_work == bool(live)
        for expected in self.requests:
            sequence = expected.sequence
            assert (sequence.status is not FINISHED) == expected.is_live  # S1, S9
            assert len(sequence.output_token_ids) == expected.num_tokens
            if expected.is_live:
                assert sequence.ready == expected.is_ready
                assert sequence.ready or sequence.status is not RUNNING or sequence.is_protected
                assert sequence.status is not PAUSED or not sequence.ready or self.scheduler.has_ready_work

    def teardown(self):
        """Everything finishes in a bounded number of steps, with the right tokens, and all blocks come back (S5)."""
        if not hasattr(self, "driver"):
            return
        live = self.live
        for expected in live:
            self.scheduler.resume(expected.sequence.request.id)
        if len(self.driver.in_flight) > self.run_ahead:
            self.driver.settle()
        worst = MAX_ANSWER * ((MAX_PROMPT + MAX_ANSWER) // self.budget + 3)
        self.driver.run(max_steps=(len(live) + 1) * worst * (1 + self.run_ahead))
        for expected in live:
            sequence = expected.sequence
            assert sequence.output_token_ids == reference(sequence.prompt_token_ids, sequence.request.params.max_tokens)
        assert self.scheduler.num_free_blocks == self.limits["num_blocks"]


SchedulerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_no_order_of_calls_breaks_a_promise = SchedulerMachine.TestCase


@pytest.mark.parametrize("seed", range(24))
def test_a_long_storm_breaks_no_promise(seed):
    """The same calls, but always with too many requests for the pool: most steps lack a block."""
    rng = Random(seed)
    machine = SchedulerMachine()
    machine.begin(rng.choice([16, 24, 32]), rng.choice([1, 2, 2]), rng.choice([3, 6]), rng.choice([3, 6]), seed % 3)
    for _ in range(150):
        if len(machine.live) < 8:
            machine.add([(rng.randint(1, MAX_PROMPT), rng.randint(4, MAX_ANSWER))], float(len(machine.requests)))
        call = rng.choices(
            [machine.steps, machine.pause, machine.resume, machine.preempt, machine.abort, machine.abandon],
            [60, 8, 30, 4, 2, 1],
        )[0]
        if call == machine.steps:
            call(rng.randint(1, 3))
        elif call != machine.abandon:
            call(rng.randrange(-8, 0))  # one of the newest
        elif machine.driver.in_flight:
            call()
        machine.all_books_are_right()
    machine.teardown()
