"""Records are kept in order, up to a number, and say whose the tokens of a step were."""

from __future__ import annotations

import pytest

from app.contract.engine_picture import CopyRecord, GroupState, StateRecord, StepRecord, StepShare
from app.engine.record_ring import MAX_RECORDS, RecordRing
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import BlockCopy, Chunk, Chunks, StepPlan
from app.engine.schedule.step_results import StepProgress
from tests.engine.sequence_groups import make_group, make_progress

TARGET_S = 0.05


def step_of(
    *chunks: tuple[Sequence, int, int],
    num_prompt: int = 0,
    num_draft: int = 0,
    gained: tuple[tuple[Sequence, int], ...] = (),
    copies: tuple[BlockCopy, ...] = (),
) -> tuple[StepPlan, StepProgress]:
    """A step with chunks, each a sequence, its first position and its number of tokens."""
    columns = Chunks.of(Chunk(1, sequence.id, start, tuple(range(count))) for sequence, start, count in chunks)
    plan = StepPlan(1, columns, (), (), copies=copies, num_prompt_tokens=num_prompt, num_draft_tokens=num_draft)
    return plan, make_progress(*gained)._replace(sequences=[sequence for sequence, _, _ in chunks])


def take_steps(ring: RecordRing) -> list[StepRecord]:
    return [record for record in ring.take()[0] if isinstance(record, StepRecord)]


def test_a_step_has_the_share_of_each_request():
    """A prompt to its end, a decode, two choices of one request, and tokens that are computed again."""
    one, two, again = (make_group(number).sequences[0] for number in (1, 2, 3))
    first, second = make_group(4, n=2).sequences
    ring = RecordRing(TARGET_S)
    chunks = ((one, 1, 2), (two, 7, 1), (first, 4, 1), (second, 5, 1), (again, 2, 5))
    ring.add_step(*step_of(*chunks, num_prompt=3), duration_s=0.02, now=5.0)
    (step,) = take_steps(ring)
    assert (step.start_time, step.duration_s, step.is_over_target) == (4.98, 0.02, False)
    assert step.shares == (
        StepShare("request-1", 2, 0, 0),
        StepShare("request-2", 0, 1, 0),
        StepShare("request-4", 0, 2, 0),
        StepShare("request-3", 1, 4, 0),
    )


def test_accepted_draft_tokens_count_apart_and_rejected_ones_not_at_all():
    one, two, three = (make_group(number).sequences[0] for number in (1, 2, 3))
    ring = RecordRing(TARGET_S)
    gained = ((one, 8), (one, 9), (one, 10), (two, 8))
    step = step_of((one, 7, 5), (two, 7, 3), (three, 7, 1), num_draft=6, gained=gained)
    ring.add_step(*step, duration_s=0.02, now=5.0)
    assert take_steps(ring)[0].shares == (
        StepShare("request-1", 0, 1, 2),
        StepShare("request-2", 0, 1, 0),
        StepShare("request-3", 0, 1, 0),
    )


def test_while_a_batch_only_decodes_its_shares_are_one_tuple():
    one, two = (make_group(number).sequences[0] for number in (1, 2))
    ring = RecordRing(TARGET_S)
    for position in (4, 5):
        ring.add_step(*step_of((one, position, 1), (two, position, 1)), duration_s=0.02, now=position)
    before = ring.take()[0][-1]
    ring.add_step(*step_of((one, 6, 1), (two, 6, 1)), duration_s=0.02, now=6.0)
    ring.add_step(*step_of((two, 7, 1), (one, 7, 1)), duration_s=0.02, now=7.0)
    ring.add_step(*step_of((two, 8, 1), (one, 0, 1), num_prompt=1), duration_s=0.02, now=8.0)
    same, other, prompt = take_steps(ring)
    assert isinstance(before, StepRecord) and same.shares is before.shares
    assert [share.request_id for share in other.shares] == ["request-2", "request-1"]
    assert prompt.shares == (StepShare("request-2", 0, 1, 0), StepShare("request-1", 1, 0, 0))


@pytest.mark.parametrize(
    ("start", "count", "num_draft", "duration_s", "target_s", "is_over"),
    [
        (4, 1, 0, 0.051, TARGET_S, True),
        (4, 1, 0, 0.05, TARGET_S, False),
        (4, 1, 0, 0.051, 0.0, False),
        (4, 3, 2, 0.051, TARGET_S, True),
        (0, 3, 0, 0.051, TARGET_S, False),
        (4, 3, 0, 0.051, TARGET_S, False),
    ],
)
def test_a_step_is_over_the_target_only_with_decodes(start, count, num_draft, duration_s, target_s, is_over):
    ring = RecordRing(target_s)
    num_prompt = max(0, 3 - start)
    step = step_of((make_group().sequences[0], start, count), num_prompt=num_prompt, num_draft=num_draft)
    ring.add_step(*step, duration_s=duration_s, now=5.0)
    assert take_steps(ring)[0].is_over_target is is_over


def test_copies_come_before_their_step_and_a_step_without_tokens_has_only_those():
    ring = RecordRing(TARGET_S)
    ring.add_step(*step_of((make_group().sequences[0], 4, 1), copies=(BlockCopy(3, 9),)), duration_s=0.5, now=5.0)
    ring.add_step(*step_of(copies=(BlockCopy(4, 8),)), duration_s=0.0, now=6.0)
    ring.add_state(7.0, "request-1", "anna", GroupState.ENDED)
    copy, step, other, state = ring.take()[0]
    assert (copy, other) == (CopyRecord(4.5, 3, 9), CopyRecord(6.0, 4, 8)) and isinstance(step, StepRecord)
    assert state == StateRecord(7.0, "request-1", "anna", GroupState.ENDED)


def test_the_oldest_records_are_dropped_and_counted():
    ring = RecordRing(TARGET_S)
    for number in range(MAX_RECORDS + 3):
        ring.add_state(float(number), "a", "", GroupState.RUNNING)
    records, num_lost = ring.take()
    assert (len(records), num_lost, records[0].time) == (MAX_RECORDS, 3, 3.0)
    assert ring.take() == ((), 0)
