"""The simulator detects a fault planted in the product within a few seeds, by the rule that the fault violates."""

from dataclasses import replace

import pytest

from app.engine.recovery import Recovery
from app.engine.schedule.deadlines import Deadlines
from app.engine.schedule.group_starts import GroupStarts
from app.engine.schedule.kv import block_tables, prefix_cache
from app.engine.schedule.kv.block_pool import BlockPool
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.kv.swap_space import SwapSpace
from app.engine.schedule.planner import Planner
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.shares import Rests, SeatShares
from app.engine.schedule.speculation import speculation
from app.engine.schedule.speculation.proposer import Proposer
from app.engine.schedule.speculation.speculation import Speculation
from tests.simulation.dump import SimulationFailed
from tests.simulation.scenario import (
    FIRST_DRAFTING_SEED,
    FIRST_LONG_SEED,
    Faults,
    make_crowded_scenario,
    make_resting_scenario,
    make_scenario,
)
from tests.simulation.simulation import run_scenario

MAX_SEEDS = 60
FIRST_SHORT_OF_SEATS = 13  # no seed before needs seats taken from an account


def assert_detected(*messages: str, faults: Faults | None = None, first: int = 0) -> None:
    """Run seeds (with these simulated faults) until one fails with one of these messages."""
    for seed in range(first, first + MAX_SEEDS):
        scenario = make_scenario(seed)
        try:
            run_scenario(replace(scenario, faults=faults or scenario.faults), max_steps=600)
        except SimulationFailed as error:
            assert any(message in str(error).splitlines()[0] for message in messages), str(error)
            return
    raise AssertionError(f"not detected in {MAX_SEEDS} seeds: {messages}")


def test_blocks_without_fences_are_detected(monkeypatch):
    release = BlockPool.release
    monkeypatch.setattr(BlockPool, "release", lambda self, block_ids, last_step: release(self, block_ids, 0))
    assert_detected("a step in flight may still touch the block")


def test_a_missing_copy_on_write_is_detected(monkeypatch):
    monkeypatch.setattr(BlockTables, "copy_on_write", lambda self, sequence: None)
    assert_detected("is shared, and sequence")


def test_a_dropped_copy_is_detected(monkeypatch):
    take_copies = BlockTables.take_copies
    monkeypatch.setattr(BlockTables, "take_copies", lambda self: take_copies(self)[:-1])
    assert_detected("reads other tokens than its own")


def test_a_cache_shared_by_all_tenants_is_detected(monkeypatch):
    monkeypatch.setattr(prefix_cache, "chain_context", lambda *_: b"")
    assert_detected("reads other tokens than its own")


def test_a_block_hash_without_its_prefix_is_detected(monkeypatch):
    extend_chain = block_tables.extend_chain
    monkeypatch.setattr(block_tables, "extend_chain", lambda _, *given: extend_chain(b"", *given))
    assert_detected("reads other tokens than its own", "named twice")


def test_blocks_cached_before_they_are_computed_are_detected(monkeypatch):
    abandon = Scheduler.abandon

    def keep_and_abandon(self, plan):
        for group in self.queues.running:
            for sequence in group.open:
                sequence.num_computed = sequence.num_scheduled
                self.tables.keep(sequence)
        return abandon(self, plan)

    monkeypatch.setattr(Scheduler, "abandon", keep_and_abandon)
    assert_detected("reads other tokens than its own")


def test_a_swap_in_from_a_wrong_block_is_detected(monkeypatch):
    copy_in = SwapSpace.copy_in

    def copy_in_wrong(self, host_block, block_id):
        copy_in(self, host_block, block_id)
        self._ins[-1] = self._ins[-1]._replace(source=self._ins[0].source)

    monkeypatch.setattr(SwapSpace, "copy_in", copy_in_wrong)
    assert_detected("reads other tokens than its own")


def test_preempting_the_first_group_is_detected(monkeypatch):
    monkeypatch.setattr(Preemption, "_victim_for", lambda self, _: self._queues.running[0])
    assert_detected("was a victim")


def test_a_victim_without_progress_is_detected(monkeypatch):
    preempt = Preemption.preempt

    def preempt_unprotected(self, group):
        preempt(self, group)
        group.is_protected = False

    monkeypatch.setattr(Preemption, "preempt", preempt_unprotected)
    assert_detected("lost its blocks twice without gaining a token")


def test_overtaking_is_detected(monkeypatch):
    last = property(lambda self: (self.returning or self.waiting or [None])[-1])
    monkeypatch.setattr(SequenceQueues, "next_to_start", last)
    assert_detected("was overtaken")


def test_an_account_that_keeps_all_seats_is_detected(monkeypatch):
    monkeypatch.setattr(SeatShares, "losers", lambda self, group, num_seats, running: [])
    with pytest.raises(SimulationFailed, match="has had too few seats"):
        for seed in range(FIRST_SHORT_OF_SEATS, FIRST_SHORT_OF_SEATS + MAX_SEEDS):
            run_scenario(make_crowded_scenario(seed))


def test_an_account_that_always_rests_is_detected(monkeypatch):
    monkeypatch.setattr(Rests, "choose", lambda self: self._shares.heaviest)
    with pytest.raises(SimulationFailed, match="consecutive steps"):
        for seed in range(MAX_SEEDS):
            run_scenario(make_resting_scenario(seed))


def test_prompts_without_progress_beside_rests_are_detected(monkeypatch):
    monkeypatch.setattr(Planner, "_add_overdue", lambda *_: None)
    with pytest.raises(SimulationFailed, match=r"it does not start|its prompt makes no progress"):
        for seed in range(MAX_SEEDS):
            run_scenario(make_resting_scenario(seed))


def test_too_many_running_sequences_are_detected(monkeypatch):
    monkeypatch.setattr(GroupStarts, "_has_seats_for", lambda self, group: True)
    assert_detected("IndexError")


def test_a_lost_token_is_detected(monkeypatch):
    update = Scheduler.update

    def forgetful_update(self, result, now):
        progress = update(self, result, now)
        return progress._replace(gained=progress.gained[:2])

    monkeypatch.setattr(Scheduler, "update", forgetful_update)
    assert_detected("tokens are lost")


def test_blocks_kept_after_an_abort_are_detected(monkeypatch):
    drop = BlockTables.drop
    monkeypatch.setattr(BlockTables, "drop", lambda self, sequence: sequence.row and drop(self, sequence))
    assert_detected("AssertionError")


def test_a_missed_deadline_is_detected(monkeypatch):
    monkeypatch.setattr(Deadlines, "expired", lambda self, now: [])
    assert_detected("deadlines are reported too early, too late or twice")


def test_work_that_does_not_start_is_detected(monkeypatch):
    start = Planner._start_waiting
    monkeypatch.setattr(
        Planner, "_start_waiting", lambda self, builder, *rest: builder.step % 50 and start(self, builder, *rest)
    )
    assert_detected("Stalled")


def test_prompts_scheduled_only_in_policy_order_are_detected(monkeypatch):
    def add_in_order(self, prefilling, builder, may_start, _):
        for sequence in prefilling:
            self._add_chunk(sequence, builder)
        if may_start:
            self._start_waiting(builder)

    monkeypatch.setattr(Planner, "_add_prompts", add_in_order)
    assert_detected("longer prompts pass it repeatedly", first=FIRST_LONG_SEED)


def test_prompts_without_progress_are_detected(monkeypatch):
    monkeypatch.setattr(Planner, "_add_overdue", lambda *_: None)
    assert_detected("it does not start", "its prompt makes no progress", first=FIRST_LONG_SEED)


def test_failing_a_wrong_request_is_detected(monkeypatch):
    monkeypatch.setattr(Recovery, "take_fault", lambda self, groups, error, now: groups[-1:])
    assert_detected("failed instead of a culprit", faults=Faults(is_culprit=0.2))


def test_accepting_a_wrong_draft_token_is_detected(monkeypatch):
    def all_samples(builder, samples):
        first = 0
        while first < len(samples):
            sequence = builder.sampling[first]
            draft = builder.drafts.get(sequence.id)
            last = first + (0 if draft is None else len(draft.token_ids))
            yield sequence, samples[first : last + 1]
            first = last + 1

    monkeypatch.setattr(speculation, "valid_samples", all_samples)
    assert_detected("is wrong", first=FIRST_DRAFTING_SEED)


def test_counting_a_rejected_draft_as_computed_is_detected(monkeypatch):
    accept_drafts = Speculation.accept_drafts

    def accept_all(self, builder, counts, samples):
        return counts, accept_drafts(self, builder, counts, samples)[1]

    monkeypatch.setattr(Speculation, "accept_drafts", accept_all)
    assert_detected("computed too much", "reads other tokens than its own", first=FIRST_DRAFTING_SEED)


def test_a_draft_beyond_the_end_is_detected(monkeypatch):
    monkeypatch.setattr(Proposer, "length", lambda self, cost, most, num_tokens: 3)
    assert_detected("a draft token beyond the end", first=FIRST_DRAFTING_SEED)
