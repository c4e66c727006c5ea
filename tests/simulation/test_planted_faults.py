"""The simulator finds a fault planted in the product within a few seeds, by the rule that the fault breaks."""

from dataclasses import replace

import pytest

from app.engine.recovery import Recovery
from app.engine.schedule import scheduler as scheduler_module
from app.engine.schedule.deadlines import Deadlines
from app.engine.schedule.group_starts import GroupStarts
from app.engine.schedule.kv import block_tables
from app.engine.schedule.kv.block_pool import BlockPool
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.kv.swap_space import SwapSpace
from app.engine.schedule.planner import Planner
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.shares import Rests
from app.engine.schedule.speculation import speculation
from app.engine.schedule.speculation.proposer import Proposer
from app.engine.schedule.speculation.speculation import Speculation
from tests.simulation.dump import SimulationFailed
from tests.simulation.scenario import (
    FIRST_GUESSING_SEED,
    FIRST_LONG_SEED,
    Faults,
    draw_crowded,
    draw_rests,
    draw_scenario,
)
from tests.simulation.simulation import run_scenario

MAX_SEEDS = 60


def find(*messages: str, faults: Faults | None = None, first: int = 0) -> None:
    """Run seed after seed (with other faults) until one fails, with one of these messages."""
    for seed in range(first, first + MAX_SEEDS):
        scenario = draw_scenario(seed)
        try:
            run_scenario(replace(scenario, faults=faults or scenario.faults), max_steps=600)
        except SimulationFailed as error:
            assert any(message in str(error).splitlines()[0] for message in messages), str(error)
            return
    raise AssertionError(f"not found in {MAX_SEEDS} seeds: {messages}")


def test_blocks_without_fences_are_found(monkeypatch):
    release = BlockPool.release
    monkeypatch.setattr(BlockPool, "release", lambda self, block_ids, last_step: release(self, block_ids, 0))
    find("a step in flight may still touch the block")


def test_a_missing_copy_on_write_is_found(monkeypatch):
    monkeypatch.setattr(BlockTables, "copy_on_write", lambda self, sequence: None)
    find("is shared, and sequence")


def test_a_copy_that_nobody_makes_is_found(monkeypatch):
    take_copies = BlockTables.take_copies
    monkeypatch.setattr(BlockTables, "take_copies", lambda self: take_copies(self)[:-1])
    find("reads other tokens than its own")


def test_a_cache_that_all_tenants_share_is_found(monkeypatch):
    monkeypatch.setattr(scheduler_module, "chain_context", lambda *_: b"")
    find("reads other tokens than its own")


def test_a_hash_that_forgets_what_came_before_is_found(monkeypatch):
    extend_chain = block_tables.extend_chain
    monkeypatch.setattr(block_tables, "extend_chain", lambda _, *given: extend_chain(b"", *given))
    find("reads other tokens than its own", "named twice")


def test_blocks_that_are_found_before_they_are_computed_are_found(monkeypatch):
    abandon = Scheduler.abandon

    def keep_and_abandon(self, plan):
        for group in self.queues.running:
            for sequence in group.open:
                sequence.num_computed = sequence.num_scheduled
                self.tables.keep(sequence)
        return abandon(self, plan)

    monkeypatch.setattr(Scheduler, "abandon", keep_and_abandon)
    find("reads other tokens than its own")


def test_a_swap_to_a_wrong_place_is_found(monkeypatch):
    copy_in = SwapSpace.copy_in

    def copy_in_wrong(self, host_block, block_id):
        copy_in(self, host_block, block_id)
        self._ins[-1] = self._ins[-1]._replace(source=self._ins[0].source)

    monkeypatch.setattr(SwapSpace, "copy_in", copy_in_wrong)
    find("reads other tokens than its own")


def test_the_first_as_a_victim_is_found(monkeypatch):
    monkeypatch.setattr(Preemption, "_victim_for", lambda self, _: self._queues.running[0])
    find("was a victim")


def test_a_victim_taken_twice_for_nothing_is_found(monkeypatch):
    preempt = Preemption.preempt

    def preempt_unprotected(self, group):
        preempt(self, group)
        group.is_protected = False

    monkeypatch.setattr(Preemption, "preempt", preempt_unprotected)
    find("lost its blocks twice for nothing")


def test_overtaking_is_found(monkeypatch):
    last = property(lambda self: (self.returning or self.waiting or [None])[-1])
    monkeypatch.setattr(SequenceQueues, "next_to_start", last)
    find("was overtaken")


def test_an_account_that_keeps_all_seats_is_found(monkeypatch):
    monkeypatch.setattr(GroupStarts, "_take_from_accounts", lambda self: 0)
    with pytest.raises(SimulationFailed, match="has had too few seats"):
        for seed in range(MAX_SEEDS):
            run_scenario(draw_crowded(seed))


def test_an_account_that_rests_for_ever_is_found(monkeypatch):
    monkeypatch.setattr(Rests, "choose", lambda self: self._shares.heaviest)
    with pytest.raises(SimulationFailed, match="steps in a row"):
        for seed in range(MAX_SEEDS):
            run_scenario(draw_rests(seed))


def test_prompts_that_stand_still_beside_rests_are_found(monkeypatch):
    monkeypatch.setattr(Planner, "_add_overdue", lambda *_: None)
    with pytest.raises(SimulationFailed, match=r"it does not start|its prompt stands still"):
        for seed in range(MAX_SEEDS):
            run_scenario(draw_rests(seed))


def test_too_many_that_run_are_found(monkeypatch):
    monkeypatch.setattr(GroupStarts, "_has_seats_for", lambda self, group, num_kept=0: True)
    find("IndexError")


def test_a_lost_token_is_found(monkeypatch):
    update = Scheduler.update

    def forgetful_update(self, result, now):
        progress = update(self, result, now)
        return progress._replace(gained=progress.gained[:2])

    monkeypatch.setattr(Scheduler, "update", forgetful_update)
    find("tokens are lost")


def test_blocks_kept_after_an_abort_are_found(monkeypatch):
    drop = BlockTables.drop
    monkeypatch.setattr(BlockTables, "drop", lambda self, sequence: sequence.row and drop(self, sequence))
    find("AssertionError")


def test_a_deadline_nobody_tells_is_found(monkeypatch):
    monkeypatch.setattr(Deadlines, "expired", lambda self, now: [])
    find("deadlines are told too early, too late or twice")


def test_work_that_nobody_starts_is_found(monkeypatch):
    start = Planner._start_waiting
    monkeypatch.setattr(
        Planner, "_start_waiting", lambda self, builder, *rest: builder.step % 50 and start(self, builder, *rest)
    )
    find("Stalled")


def test_prompts_that_wait_for_the_policys_first_to_end_are_found(monkeypatch):
    def add_in_order(self, prefilling, builder, may_start, _):
        for sequence in prefilling:
            self._add_chunk(sequence, builder)
        if may_start:
            self._start_waiting(builder)

    monkeypatch.setattr(Planner, "_add_prompts", add_in_order)
    find("longer prompts pass it again and again", first=FIRST_LONG_SEED)


def test_prompts_that_stand_still_are_found(monkeypatch):
    monkeypatch.setattr(Planner, "_add_overdue", lambda *_: None)
    find("it does not start", "its prompt stands still", first=FIRST_LONG_SEED)


def test_blaming_a_bystander_is_found(monkeypatch):
    monkeypatch.setattr(Recovery, "take_fault", lambda self, groups, error, now: groups[-1:])
    find("failed for another one", faults=Faults(is_poisoned=0.2))


def test_a_wrong_guess_that_counts_is_found(monkeypatch):
    monkeypatch.setattr(speculation, "_num_equal", lambda guess, samples: len(guess))
    find("is wrong", first=FIRST_GUESSING_SEED)


def test_a_wrong_guess_that_counts_as_computed_is_found(monkeypatch):
    accept_drafts = Speculation.accept_drafts

    def accept_all(self, builder, counts, samples):
        return counts, accept_drafts(self, builder, counts, samples)[1]

    monkeypatch.setattr(Speculation, "accept_drafts", accept_all)
    find("computed too much", "reads other tokens than its own", first=FIRST_GUESSING_SEED)


def test_a_guess_beyond_the_end_is_found(monkeypatch):
    monkeypatch.setattr(Proposer, "length", lambda self, price, most, num_tokens: 3)
    find("a guess nobody can use", first=FIRST_GUESSING_SEED)
