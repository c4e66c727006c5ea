"""Preemption: which groups lose their blocks when others need them, and whether the blocks are swapped or recomputed.

PAUSED groups are victims first, then RUNNING ones from the end of the policy's order, up to and including the group
that needs the blocks. The first RUNNING one is never a victim, nor is one that has gained no token since it was a
victim: so the first always ends, and no group is preempted again and again without progress. A group is preempted as a
whole: its sequences share blocks.
"""

from __future__ import annotations

from collections import Counter

from app.contract.engine_counts import PreemptionCounts
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import HOLDING, PAUSED, PREEMPTED, SWAPPED
from app.engine.schedule.step_budget import StepBudget
from app.observe.shown_id import shown_id


class Preemption:
    """Finds victims and takes their blocks. Engine thread only.

    `allowed` names the requests that may run while a fault is being isolated (None: all): the other groups are victims
    before all those above.
    """

    def __init__(self, queues: SequenceQueues, tables: BlockTables, budget: StepBudget) -> None:
        self.allowed: frozenset[str] | None = None
        self.counts = PreemptionCounts()
        self._queues = queues
        self._tables = tables
        self._budget = budget

    @property
    def last_running(self) -> SequenceGroup:
        """The RUNNING group that is the first to lose its seats."""
        not_allowed = [group for group in self._queues.running if not self.may_run(group)]
        return (not_allowed or self._queues.running)[-1]

    @property
    def max_reclaimable(self) -> int:
        """The most blocks that victims can free for a group that starts; fewer where victims share blocks."""
        return sum(_num_blocks(group) for group in self._queues.holding() if self._is_reclaimable(group))

    def may_run(self, group: SequenceGroup) -> bool:
        """Return whether `group` may run: false for the others while a fault is isolated."""
        return self.allowed is None or group.request.id in self.allowed

    def waits_for_one_prompt(self, group: SequenceGroup) -> bool:
        """Return whether `group`, which waits, would have seats and blocks without the only prompt being computed."""
        queues, tables = self._queues, self._tables
        prompts = [running for running in queues.running if running.open[0].num_left > 1]
        if len(prompts) != 1:
            return False
        num_seats = queues.num_seats - prompts[0].num_seats + group.num_seats
        has_blocks = tables.num_to_start(group, []) <= tables.pool.num_soon_free + _num_blocks(prompts[0])
        return has_blocks and num_seats <= min(queues.rows.num_rows, self._budget.tokens)

    def for_growth(self, group: SequenceGroup, count: int) -> bool:
        """Return whether `count` blocks are free for a RUNNING group, after preempting victims for them.

        False also if the group itself was the victim, or if the group only has to wait for a fence.
        """
        pool = self._tables.pool
        while not pool.can_allocate(count):
            if count <= pool.num_soon_free:
                return False
            victim = self._victim_for(group)
            if victim is None:
                return False
            self.preempt(victim)
            if victim is group:
                return False
        return True

    def for_start(self, count: int) -> bool:
        """Return whether `count` blocks are free, after preempting PAUSED groups if that frees enough."""
        pool = self._tables.pool
        if count > pool.num_soon_free:
            if count > pool.num_soon_free + self.max_reclaimable:
                return False
            victims = [group for group in self._queues.holding() if self._is_reclaimable(group)]
            if count > pool.num_soon_free + self._num_freed_by(victims):
                return False
            for group in victims:
                if count <= pool.num_soon_free:
                    break
                self.preempt(group)
        return pool.can_allocate(count)

    def for_account(self, group: SequenceGroup, count: int) -> None:
        """Preempt one group for `group`, which is to start and needs `count` blocks.

        The victim is the last group of the account that holds the most blocks, unless that account would then hold
        fewer than the account of `group`.
        """
        held: Counter[str] = Counter()
        last: dict[str, SequenceGroup] = {}
        for other in self._queues.holding():
            held[other.account] += _num_blocks(other)
            if not other.is_protected and other is not self._queues.running[0]:
                last.setdefault(other.account, other)
        fewest = held[group.account] + count
        candidates = (other for other in last.values() if held[other.account] - _num_blocks(other) >= fewest)
        victim = max(candidates, key=lambda other: held[other.account], default=None)
        if victim is not None:
            self.preempt(victim)

    def preempt(self, group: SequenceGroup) -> None:
        """Take the blocks of a RUNNING or PAUSED group, which starts again at its turn in the policy's order.

        Raises:
            ValueError: the group is in another state; nothing was changed.
        """
        if group.status not in HOLDING:
            raise ValueError(
                f"request {shown_id(group.request.id)} is {group.status.value}; it holds no blocks to give up"
            )
        if self._is_worth_swapping(group):
            self._queues.move(group, SWAPPED)
            self._tables.swap_out(group)
            group.num_swaps += 1
            self.counts.num_swaps += 1
            group.is_protected = True
        else:
            self.drop(group)
        group.num_preemptions += 1
        self.counts.num_preemptions += 1

    def drop(self, group: SequenceGroup) -> None:
        """Release the blocks of a group, which will be computed again; not counted as a preemption."""
        self._queues.move(group, PREEMPTED)
        group.dropped = range(group.num_computed, group.num_scheduled)
        for sequence in group.open:
            self._tables.drop(sequence)
            sequence.start_at(0)
            if group.samples.pop(sequence.id, None):  # of a beam, to be sampled again with the other beams
                sequence.retract()
        group.fold()
        group.is_protected = True

    def _is_reclaimable(self, group: SequenceGroup) -> bool:
        """Return whether a group that holds blocks is a victim for a group that starts."""
        return not self.may_run(group) or (group.status is PAUSED and not group.ready)

    def _victim_for(self, group: SequenceGroup) -> SequenceGroup | None:
        queues = self._queues
        if self.allowed is not None:
            for victim in queues.holding():
                if not self.may_run(victim):
                    return victim
        for queue in (queues.paused, queues.resuming):
            if queue:
                return queue[-1]
        for victim in reversed(queues.running[1:]):
            if not victim.is_protected:
                return victim
            if victim is group:
                break
        return None

    def _num_freed_by(self, groups: list[SequenceGroup]) -> int:
        """Return how many blocks would have no holder if `groups` released theirs."""
        held = Counter(block_id for group in groups for sequence in group.open for block_id in sequence.block_table)
        return sum(1 for block_id, count in held.items() if self._tables.pool.num_references(block_id) == count)

    def _is_worth_swapping(self, group: SequenceGroup) -> bool:
        """Return whether moving the blocks to host memory and back is to cost less than computing them again."""
        if group.is_folded or not self._tables.swap.pool.num_blocks:
            return False
        if group.search is not None and self._tables.is_in_flight(group):
            return False  # beams fork with the step in flight, and only on the device
        num_blocks = len({block_id for sequence in group.open for block_id in sequence.block_table})
        num_tokens = group.num_computed
        if not num_tokens or not self._tables.swap.pool.can_allocate(num_blocks):
            return False
        recompute_s = self._budget.cost.predict(num_tokens, num_tokens * num_tokens // (2 * len(group.open)))
        return not self._budget.cost.is_known or 2 * num_blocks * self._tables.swap.block_s < recompute_s


def _num_blocks(group: SequenceGroup) -> int:
    return sum(len(sequence.block_table) for sequence in group.open)
