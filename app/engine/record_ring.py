"""The record ring: the newest records of what has happened since the last picture.

The record of a step is made when it is done: a step that is kept for later keeps all objects of its tokens, which makes
the steps after it slower.
"""

from __future__ import annotations

from collections import Counter, deque

from app.contract.engine_picture import CopyRecord, GroupState, Record, StateRecord, StepRecord, StepShare
from app.engine.schedule.step_plan import StepPlan
from app.engine.schedule.step_results import StepProgress

MAX_RECORDS = 4096


class RecordRing:
    """Keeps records, at most `MAX_RECORDS`: the oldest are dropped, and counted. Engine thread only.

    `itl_target` is the time in seconds that a step with decodes may take; 0 is no limit.
    """

    def __init__(self, itl_target: float) -> None:
        self._itl_target = itl_target
        self._kept: deque[Record] = deque(maxlen=MAX_RECORDS)
        self._num_added = 0
        self._plain_ids: tuple[int, ...] = ()  # of the sequences in the last step with one token of each answer
        self._plain_shares: tuple[StepShare, ...] = ()

    def add_step(self, plan: StepPlan, progress: StepProgress, duration_s: float, now: float) -> None:
        """Add a step that is done since `now` and took the device `duration_s`, and the copies that it began with."""
        start_time = now - duration_s
        for source, target in plan.copies:
            self._add(CopyRecord(start_time, source, target))
        if plan.num_tokens:
            is_over_target = 0.0 < self._itl_target < duration_s and has_decodes(plan, progress)
            self._add(StepRecord(start_time, duration_s, self._shares(plan, progress), is_over_target))

    def add_state(self, time: float, request_id: str, account: str, state: GroupState) -> None:
        """Add the new state of an account's request."""
        self._add(StateRecord(time, request_id, account, state))

    def take(self) -> tuple[tuple[Record, ...], int]:
        """Return the records since the last call, and how many were dropped before them."""
        records = tuple(self._kept)
        num_lost = self._num_added - len(records)
        self._kept.clear()
        self._num_added = 0
        return records, num_lost

    def _add(self, record: Record) -> None:
        self._kept.append(record)
        self._num_added += 1

    def _shares(self, plan: StepPlan, progress: StepProgress) -> tuple[StepShare, ...]:
        """Return the shares of a step; the same tuple again while a batch only decodes, as it does nearly always."""
        chunks = plan.chunks
        if plan.num_prompt_tokens or plan.num_tokens > len(chunks):
            return shares(plan, progress)
        if chunks.sequence_ids != self._plain_ids:
            self._plain_ids, self._plain_shares = chunks.sequence_ids, shares(plan, progress)
        return self._plain_shares


def shares(plan: StepPlan, progress: StepProgress) -> tuple[StepShare, ...]:
    """Return the share of each request in the tokens of a step; rejected draft tokens are nobody's."""
    parts: dict[str, list[int]] = {}
    if plan.num_draft_tokens:  # a step with drafts has only decodes besides
        gained = Counter(sequence.id for sequence, _ in progress.gained)
        for sequence in progress.sequences:
            part = parts.setdefault(sequence.request.id, [0, 0, 0])
            part[1] += 1
            part[2] += max(0, gained[sequence.id] - 1)
    else:
        chunks = plan.chunks
        for sequence, start, count in zip(progress.sequences, chunks.starts, chunks.counts, strict=True):
            num_prompt = max(0, min(start + count, sequence.num_prompt) - start)
            part = parts.setdefault(sequence.request.id, [0, 0, 0])
            part[0] += num_prompt
            part[1] += count - num_prompt
    return tuple(StepShare(request_id, *part) for request_id, part in parts.items())


def has_decodes(plan: StepPlan, progress: StepProgress) -> bool:
    """Return whether an answer waited for a step: what `StepBudget` counts if such a step takes too long."""
    if plan.num_draft_tokens:
        return True
    chunks = plan.chunks
    columns = zip(progress.sequences, chunks.starts, chunks.counts, strict=True)
    return any(count == 1 and start >= sequence.num_prompt for sequence, start, count in columns)
