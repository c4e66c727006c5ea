"""Group starts: which groups start or run again beside the running ones.

Resumed groups run again while there are seats (`max_num_seqs`; a PAUSED one takes none and has no rows). Groups without
blocks start, in the policy's order, while seats, budget and blocks last; no group overtakes the first. A group starts
when the blocks of all its tokens fit plus a watermark of 1 % (none while nothing else runs); tokens found in the prefix
cache are not computed. All blocks are allocated at once, so a prefill never stops half-way for lack of blocks. PAUSED
groups are preempted when that frees enough. Under `fair` the account with the fewest seats comes first, and accounts
with more lose seats and blocks to it (see `shares`). A group starts when the masks of its sequences are there, if they
have any; until then it holds up none behind it.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from app.contract.engine_counts import StartCounts
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_tables import BlockTables
from app.engine.schedule.late_sequences import LateSequences
from app.engine.schedule.preemption import Preemption
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import PAUSED, RUNNING, SWAPPED
from app.engine.schedule.shares import Passing, SeatShares
from app.engine.schedule.step_budget import StepBudget
from app.engine.schedule.step_builder import StepPlanBuilder

_sort_key = attrgetter("sort_key")


class _Rejection(NamedTuple):
    """The group that could not start, the blocks that could be freed and were needed, and how many the cache had."""

    group: SequenceGroup | None
    num_soon_free: int
    max_reclaimable: int
    num_hits: int
    needed: int


class GroupStarts:
    """Gives groups seats and blocks. Engine thread only.

    `counts` are of tokens: of prompts looked up in the prefix cache, found there, and computed again by groups that had
    lost their blocks.
    """

    def __init__(
        self,
        queues: SequenceQueues,
        tables: BlockTables,
        preemption: Preemption,
        budget: StepBudget,
        late: LateSequences | None = None,
    ) -> None:
        self.counts = StartCounts()
        self._queues = queues
        self._tables = tables
        self._preemption = preemption
        self._budget = budget
        self._late = late
        self._watermark = -(-tables.pool.num_blocks // 100)
        self._rejection = _Rejection(None, 0, 0, 0, 0)
        self._step = 0  # the one that is being planned

    def next_group(self) -> SequenceGroup | None:
        """Return the group that is next to start or to start again; None if no group may."""
        allowed, shares = self._preemption.allowed, self._queues.shares
        queues = chain(self._queues.returning, self._queues.waiting)
        if allowed is not None:
            group = next((group for group in queues if group.request.id in allowed), None)
            return group if group is not None and self._has_masks(group) else None
        if shares is not None:
            group, _ = self._next_by_seats(shares)
            if group is not None:
                return None if group.status is PAUSED else group
        else:
            group = self._queues.next_to_start
            if group is None or self._has_masks(group):
                return group
        others = (other for other in queues if self._has_masks(other, is_next=False))
        return min(others, key=_sort_key if shares is None else shares.rank, default=None)

    def _has_masks(self, group: SequenceGroup, *, is_next: bool = True) -> bool:
        """Return whether a group without rows can take part in a step; have its masks made if it `is_next`."""
        if self._late is None or group.request.grammar is None:
            return True
        if all(self._late.has_mask(one.id, len(one.output_token_ids)) for one in group.open):
            return True
        if is_next:
            for one in group.open:
                self._late.prepare(one.id, group.sampling, one.output_token_ids, is_next=True)
        return False

    def shrink_to_budget(self) -> None:
        """Preempt the last running groups while more seats are taken than a step has tokens (the budget has shrunk)."""
        while self._queues.num_seats > self._budget.tokens and len(self._queues.running) > 1:
            self._preemption.preempt(self._preemption.last_running)

    def resume(self, step: int) -> bool:
        """Run resumed groups again; False if no group may start: one that waits for seats comes before all others."""
        self._step = step
        shares = self._queues.shares
        if shares is not None and self._preemption.allowed is None:
            return self._resume_by_seats(shares)
        for group in tuple(self._queues.resuming):
            if not self._preemption.may_run(group) or self._tables.is_in_flight(group) or not self._has_masks(group):
                continue  # its new rows need the tokens in flight
            if not self._has_seats_for(group):
                return False
            self._run_again(group)
        return True

    def _resume_by_seats(self, shares: SeatShares) -> bool:
        """Do what `resume` does under `fair`: keep seats for the next group to start, and run others beside it."""
        num_kept: int | None = None
        while True:
            group, has_seats = self._next_by_seats(shares, num_kept)
            if group is None or not has_seats:
                return group is None or num_kept is not None
            if group.status is PAUSED:
                self._take_seats(group, num_kept or 0, shares)
                self._run_again(group)
            elif self._may_have_blocks(group):
                self._take_seats(group, 0, shares)
                num_kept = group.num_seats
            else:
                num_kept = 0
            if not self._queues.resuming:
                return True

    def _run_again(self, group: SequenceGroup) -> None:
        self._queues.move(group, RUNNING)
        group.turn_since = self._step

    def admit(self, group: SequenceGroup, builder: StepPlanBuilder) -> bool:
        """Give a group its seats and blocks; False if the group cannot start in this step."""
        if builder.sits_out(group) or not self._has_seats_for(group) or self._tables.is_in_flight(group):
            return False
        if not (self._swap_in(group, builder) if group.status is SWAPPED else self._start(group, builder)):
            return False
        builder.started.append(group)
        group.next_since, group.turn_since = 0, builder.step
        return True

    def _start(self, group: SequenceGroup, builder: StepPlanBuilder) -> bool:
        """Allocate the blocks of a group that has none; False if they do not fit now, or could not be used."""
        tables = self._tables
        if not self._budget.has_room(builder, 0) or self._was_rejected(group):
            return False  # looking up a long prompt in every step would slow all requests
        hits = tables.find_hits(group.open[0])
        tables.hold_hits(hits)
        has_time = not hits or self._budget.has_room(builder, len(hits) * tables.block_size)
        needed = tables.num_to_start(group, hits) + self._watermark_now
        if not (has_time and self._preemption.for_start(needed)):
            lacks_blocks = has_time and needed > tables.pool.num_soon_free  # else the group only waits for a fence
            tables.release_hits(hits)
            if lacks_blocks:
                self._note_rejection(group, len(hits), needed)
            return False
        self._queues.move(group, RUNNING)
        tables.start(group, hits)
        num_found = len(hits) * tables.block_size
        self._note_start(group, num_found, group.open[0].num_computed - num_found)
        return True

    def _swap_in(self, group: SequenceGroup, builder: StepPlanBuilder) -> bool:
        """Swap a SWAPPED group in; False if its blocks do not fit now, or could not be used.

        All its sequences must be able to run in this step: the copies they take before they write are counted.
        """
        if builder.num_left < min(len(group.open), self._budget.tokens) or self._was_rejected(group):
            return False
        if not self._budget.has_room(builder, group.open[0].num_scheduled):
            return False
        needed = self._tables.num_to_swap_in(group) + self._watermark_now
        if not self._preemption.for_start(needed):
            if needed > self._tables.pool.num_soon_free:
                self._note_rejection(group, group.open[0].num_tokens, needed)
            return False
        self._queues.move(group, RUNNING)
        self._tables.swap_in(group)
        return True

    def _may_have_blocks(self, group: SequenceGroup) -> bool:
        """Return whether `group` may find blocks to start with.

        If it found none last time, an account with more loses some.
        """
        if not self._queues.running:
            return self._has_blocks_for(group)  # else PAUSED groups, which hold the others, are to run
        if self._was_rejected(group):
            self._preemption.for_account(group, self._rejection.needed)
        return not self._was_rejected(group)

    def _take_seats(self, group: SequenceGroup, num_kept: int, shares: SeatShares) -> None:
        """Take the seats that `group` lacks, beside `num_kept` free ones, from accounts with more or by turns."""
        num_missing = self._queues.num_seats + group.num_seats + num_kept - self._num_seats
        if num_missing <= 0:
            return
        losers = shares.losers(group, num_missing, self._queues.running)
        if not losers:
            losers = self._turns_to_end(group, num_missing, shares)
            shares.give_way(losers, group)
        for loser in losers:
            self._queues.move(loser, PAUSED)

    def _turns_to_end(self, group: SequenceGroup, num_seats: int, shares: SeatShares) -> list[SequenceGroup]:
        """Return the groups that give way to `group`; none also if it lacks blocks, since that would be in vain."""
        losers = shares.turns_to_end(group, num_seats, self._queues.running, self._step)
        return losers if losers and self._has_blocks_for(group) else []

    def _has_blocks_for(self, group: SequenceGroup) -> bool:
        """Return whether `group` has its blocks, or all that it needs to start are free."""
        if group.status is PAUSED:
            return True
        tables = self._tables
        needed = tables.num_to_swap_in(group) if group.status is SWAPPED else tables.num_to_start(group, [])
        return tables.pool.can_allocate(needed + self._watermark_now)

    def _next_by_seats(self, shares: SeatShares, num_kept: int | None = None) -> tuple[SequenceGroup | None, bool]:
        """Return the group that gets seats next under `fair`, and whether it can have them now.

        None if no group waits that could run in this step. If none can have its seats, it is the first of them. With
        `num_kept` only PAUSED ones count, beside so many seats that are kept for another one: also those behind a group
        of their account that has no blocks, for they may hold the blocks that it needs.
        """
        groups = shares.next_groups if num_kept is None else shares.first_of_accounts(self._queues.resuming)
        running = self._queues.running
        if not groups:
            return None, False
        num_free = self._num_seats - self._queues.num_seats - (num_kept or 0)
        first: SequenceGroup | None = None
        passing: Passing | None = None
        has_all_masks = True
        for group in groups:
            if passing is not None and not passing.allows(group):
                continue
            if self._tables.is_in_flight(group):
                continue
            if not self._has_masks(group, is_next=has_all_masks):
                has_all_masks = False
                continue
            num_missing = group.num_seats - num_free
            if num_missing <= 0 or not (running or num_kept):  # alone it may have more than a step has tokens
                return group, True
            if passing is None and shares.losers(group, num_missing, running):
                return group, True
            if self._turns_to_end(group, num_missing, shares):
                return group, True
            if passing is None:
                first, passing = group, Passing(shares, running, num_free)
            passing.add(group, has_blocks=self._has_blocks_for(group))
            if passing.is_over:
                break
        return first, False

    def _has_seats_for(self, group: SequenceGroup) -> bool:
        """Preempt groups not allowed; return whether `group` has seats beside the RUNNING ones (alone always)."""
        queues = self._queues
        while queues.running and queues.num_seats + group.num_seats > self._num_seats:
            if self._preemption.may_run(self._preemption.last_running):
                return False
            self._preemption.preempt(self._preemption.last_running)
        return True

    def _was_rejected(self, group: SequenceGroup) -> bool:
        """Return whether `group` could not start last time, and neither free blocks nor cache hits have grown since."""
        last = self._rejection
        if group is not last.group or not self._queues.running or self._preemption.allowed is not None:
            return False
        soon_free, reclaimable = self._tables.pool.num_soon_free, self._preemption.max_reclaimable
        if soon_free > last.num_soon_free or reclaimable > last.max_reclaimable:
            return False
        self._rejection = last._replace(num_soon_free=soon_free, max_reclaimable=reclaimable)  # they may grow again
        return self._tables.find_hit(group.open[0], last.num_hits) is None

    def _note_rejection(self, group: SequenceGroup, num_hits: int, needed: int) -> None:
        soon_free, reclaimable = self._tables.pool.num_soon_free, self._preemption.max_reclaimable
        self._rejection = _Rejection(group, soon_free, reclaimable, num_hits, needed)

    def _note_start(self, group: SequenceGroup, num_found: int, num_loaded: int) -> None:
        if group.first_scheduled_time is None:
            # Told tokens may be found, too.
            group.num_cached_tokens = min(num_found + num_loaded, group.num_prompt)
            group.num_loaded_tokens = num_loaded
            self.counts.num_prefix_queries += group.num_prompt if self._tables.is_caching else 0
            self.counts.num_prefix_hits += min(num_found, group.num_prompt)
        else:
            num_lost = max(0, group.dropped.start - num_found - num_loaded)
            group.num_lost_tokens += num_lost
            self.counts.num_lost_tokens += num_lost

    @property
    def _watermark_now(self) -> int:
        return self._watermark if self._queues.running and self._preemption.allowed is None else 0

    @property
    def _num_seats(self) -> int:
        return min(self._queues.rows.num_rows, self._budget.tokens)
