"""Pictures of a scheduler's books after every step, each compared with the books themselves."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import chain, count

from app.contract.engine_picture import (
    CopyRecord,
    EnginePicture,
    GroupState,
    PictureGroup,
    Record,
    StateRecord,
    StepRecord,
)
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.sequence import PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING
from app.engine.schedule.step_plan import StepPlan, StepResult
from app.engine.schedule.step_results import StepProgress
from app.engine.view import View

STATES = {
    (WAITING, True): GroupState.WAITING,
    (WAITING, False): GroupState.PAUSED,
    (RUNNING, True): GroupState.RUNNING,
    (RUNNING, False): GroupState.RUNNING,
    (PAUSED, True): GroupState.WAITING,
    (PAUSED, False): GroupState.PAUSED,
    (PREEMPTED, True): GroupState.PREEMPTED,
    (PREEMPTED, False): GroupState.PAUSED,
    (SWAPPED, True): GroupState.SWAPPED,
    (SWAPPED, False): GroupState.PAUSED,
}


class Watched:
    """A view that makes a picture whenever it is asked for one; it sees every step that is done in `scheduler`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.view = View(scheduler, count(1), clock=lambda: 0.0)
        self.records: list[Record] = []
        self.plans: list[StepPlan] = []  # of the steps that are done
        self.now = 0.0
        self._scheduler = scheduler
        self._update = scheduler.update
        scheduler.update = self._take  # type: ignore[method-assign]

    def _take(self, result: StepResult, now: float) -> StepProgress:
        plan = self._scheduler._in_flight[0].plan
        progress = self._update(result, now)
        self.plans.append(plan)
        self.view.take_step(plan, result, progress, self.now)
        return progress

    def check(self) -> EnginePicture:
        """Make a picture and compare it with the books."""
        self.now += 1.0
        picture = self.view.take_picture(self.now)
        assert picture is not None and picture.num_lost_records == 0
        check_blocks(picture, self._scheduler)
        check_groups(picture, self._scheduler)
        self.records += picture.records
        return picture

    def check_records(self) -> None:
        """Compare all records so far with the plans of the steps and the counts of the scheduler."""
        scheduler, plans = self._scheduler, self.plans
        steps = [record for record in self.records if isinstance(record, StepRecord)]
        shares = [share for step in steps for share in step.shares]
        assert [sum(share.num_prompt for share in step.shares) for step in steps] == [
            plan.num_prompt_tokens for plan in plans if plan.num_tokens
        ]
        num_decode = sum(plan.num_tokens - plan.num_prompt_tokens - plan.num_draft_tokens for plan in plans)
        assert sum(share.num_decode for share in shares) == num_decode
        speculation = scheduler.speculation
        num_accepted = 0 if speculation is None else speculation.counts.num_accepted_tokens
        assert sum(share.num_accepted for share in shares) == num_accepted
        assert sum(step.is_over_target for step in steps) == scheduler.budget.counts.num_over_target
        copies = [(record.source, record.target) for record in self.records if isinstance(record, CopyRecord)]
        assert copies == [tuple(copy) for plan in plans for copy in plan.copies]
        ends = Counter(
            record.request_id for record in self.records
            if isinstance(record, StateRecord) and record.state is GroupState.ENDED
        )  # fmt: skip
        assert not ends or max(ends.values()) == 1


def check_blocks(picture: EnginePicture, scheduler: Scheduler) -> None:
    """Compare the blocks of a picture with the pool, and with the tables, pins and readers that name them."""
    tables, pool = scheduler.tables, scheduler.tables.pool
    assert (picture.block_size, picture.num_blocks) == (scheduler.limits.block_size, scheduler.limits.num_blocks)
    references, findable = ids("H", picture.references), list(picture.findable)
    fenced, pinned = ids("I", picture.fenced), ids("I", picture.pinned)
    every = range(1, pool.num_blocks + 1)
    assert references == [0, *map(pool.num_references, every)]
    assert findable == [False, *map(pool.is_findable, every)]
    named = Counter(chain.from_iterable(ids("I", table.block_ids) for each in picture.groups for table in each.tables))
    named.update(pinned)
    named.update(chain.from_iterable(chain.from_iterable(tables._held_for_connector.values())))
    assert references == [named[block_id] for block_id in range(pool.num_blocks + 1)]
    assert pinned == scheduler.pinned
    assert len(fenced) == len(set(fenced)) == pool.num_fenced and not any(references[each] for each in fenced)
    unused = [each for each in every if not references[each] and each not in set(fenced)]
    assert len(unused) == pool.num_free and sum(findable[each] for each in unused) == pool.num_cached
    assert picture.num_host_blocks == scheduler.limits.num_host_blocks
    assert picture.num_used_host_blocks == tables.counts.num_host


def check_groups(picture: EnginePicture, scheduler: Scheduler) -> None:
    """Compare the requests of a picture with those in the queues."""
    queues = {id(queue): queue for queue in scheduler.queues._queues.values()}
    groups = {group.request.id: group for group in chain.from_iterable(queues.values())}
    assert len(picture.groups) == len(groups)
    for found in picture.groups:
        check_group(found, groups[found.request_id])
    states, counts = Counter(each.state for each in picture.groups), scheduler.counts
    assert states[GroupState.RUNNING] == counts.num_running
    assert states[GroupState.PAUSED] == counts.num_paused
    assert states.total() == counts.num_running + counts.num_waiting + counts.num_paused


def check_group(found: PictureGroup, group: SequenceGroup) -> None:
    """Compare a request of a picture with its group."""
    assert found.state is STATES[group.status, group.ready]
    assert (found.account, found.num_prompt) == (group.request.account, len(group.request.prompt_token_ids))
    assert (found.max_tokens, found.arrival_time) == (group.request.params.max_tokens, group.request.arrival_time)
    assert found.num_computed == group.num_computed
    assert found.num_output == sum(len(sequence.output_token_ids) for sequence in group.open)
    assert found.num_rows == sum(sequence.row is not None for sequence in group.open)
    assert (found.num_cached, found.num_preemptions) == (group.num_cached_tokens, group.num_preemptions)
    assert found.num_swaps <= found.num_preemptions and (found.num_swaps or group.status is not SWAPPED)
    assert [
        (table.choice, ids("I", table.block_ids), table.num_tokens, ids("I", table.host_block_ids))
        for table in found.tables
    ] == [
        (sequence.choice, sequence.block_table, sequence.num_computed, sequence.host_table) for sequence in group.open
    ]


def ids(typecode: str, data: bytes) -> list[int]:
    """The numbers of an array in a picture."""
    return array(typecode, data).tolist()
