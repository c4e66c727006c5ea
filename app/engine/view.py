"""The view: copies the engine's books into pictures, for those who watch.

A copy is all that the engine does. Whole pictures are made, now and then, so nothing that changes the books has to tell
of it. The rate follows the cost: a picture that took t seconds of processor time, with the records in it, is followed
by the next after 200 t at the earliest, so pictures cost half a per cent, however many blocks and requests there are,
and a machine that is busy with other things shows as much as an idle one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import inf

from app.contract.engine_picture import EnginePicture, GroupState, PictureGroup, PictureTable
from app.engine.record_ring import RecordRing
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import FINISHED, PREEMPTED, RUNNING, SWAPPED
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.engine.schedule.step_results import StepProgress
from app.runtime.clock import Clock, thread_time

MIN_INTERVAL_S = 0.1
"""The least time from one picture to the next: nobody sees more than ten a second."""
COST_TIMES = 200
"""The time from one picture to the next is at least this many times what the first one took: a picture also costs what
cannot be measured in it, such as the books that are no longer in the processor's caches.
"""


class View:
    """Makes pictures of the books of one scheduler. Engine thread only; there is one while somebody watches.

    `numbers` are those of the pictures, `clock` counts what they cost.

    Attributes:
        due: when the next picture is due, whether anything else is to be done or not; infinite while nothing has
            changed since the last one.
    """

    def __init__(self, scheduler: Scheduler, numbers: Iterator[int], clock: Clock = thread_time) -> None:
        self.due = -inf
        self._earliest = -inf
        self._recording_s = 0.0  # since the last picture
        self._scheduler = scheduler
        self._numbers = numbers
        self._clock = clock
        self._changed = scheduler.queues.report_changes()
        self._records = RecordRing(scheduler.limits.itl_target)

    def close(self) -> None:
        """Listen to the scheduler no more."""
        self._scheduler.queues.stop_reporting(self._changed)

    def take_step(self, plan: StepPlan, result: StepResult, progress: StepProgress, now: float) -> None:
        """Note a step that is done since `now`."""
        began = self._clock()
        self._records.add_step(plan, progress, result.duration_s, now)
        self._recording_s += self._clock() - began

    def take_picture(self, now: float) -> EnginePicture | None:
        """Return a picture; None so soon after the last one, and then the next is due as soon as it may be made.

        To be called at the end of every turn: each may have changed the books.
        """
        for group in self._changed:
            self._records.add_state(now, group.request.id, group.account, state_of(group))
        self._changed.clear()
        if now < self._earliest:
            self.due = self._earliest
            return None
        picture = self._make_picture(now)
        cost, self._recording_s = picture.duration_s + self._recording_s, 0.0
        self.due, self._earliest = inf, now + max(MIN_INTERVAL_S, COST_TIMES * cost)
        return picture

    def _make_picture(self, now: float) -> EnginePicture:
        began = self._clock()
        scheduler = self._scheduler
        tables = scheduler.tables
        blocks = tables.pool.snapshot()
        groups = tuple(map(_picture_group, scheduler.groups))
        records, num_lost = self._records.take()
        return EnginePicture(
            number=next(self._numbers),
            time=now,
            block_size=tables.block_size,
            num_blocks=tables.pool.num_blocks,
            references=blocks.references,
            findable=blocks.findable,
            fenced=blocks.fenced,
            pinned=array("I", scheduler.pinned).tobytes(),
            num_host_blocks=tables.swap.pool.num_blocks,
            num_used_host_blocks=tables.swap.num_used,
            groups=groups,
            records=records,
            num_lost_records=num_lost,
            duration_s=self._clock() - began,
        )


def state_of(group: SequenceGroup) -> GroupState:
    """Return the state that a group has in pictures: running, waiting and paused ones are those of `QueueCounts`."""
    status = group.status
    if status is FINISHED:
        return GroupState.ENDED
    if status is RUNNING:
        return GroupState.RUNNING
    if not group.ready:
        return GroupState.PAUSED
    if status is PREEMPTED:
        return GroupState.PREEMPTED
    return GroupState.SWAPPED if status is SWAPPED else GroupState.WAITING


def _picture_group(group: SequenceGroup) -> PictureGroup:
    request, num_output, num_rows, tables = group.request, 0, 0, []
    for sequence in group.open:
        num_output += len(sequence.output_token_ids)
        num_rows += sequence.row is not None
        blocks = array("I", sequence.block_table).tobytes()
        host_blocks = array("I", sequence.host_table).tobytes() if sequence.host_table else b""
        tables.append(PictureTable(sequence.choice, blocks, sequence.num_computed, host_blocks))
    return PictureGroup(
        request.id,
        group.account,
        state_of(group),
        group.num_prompt,
        group.num_computed,
        num_output,
        request.params.max_tokens or 0,
        num_rows,
        group.num_cached_tokens,
        group.num_preemptions,
        group.num_swaps,
        request.arrival_time,
        tuple(tables),
    )
