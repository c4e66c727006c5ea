"""A step while it is put together."""

import pytest

from app.engine.schedule.draft import StepDraft
from app.engine.schedule.plan import BlockAppend
from app.engine.schedule.rows import RowPool
from app.engine.schedule.sequence import Sequence
from tests.engine.schedule.fake_model import make_request


@pytest.fixture
def rows() -> RowPool:
    return RowPool(4)


def make_sequence(sequence_id: int = 1, num_prompt: int = 6) -> Sequence:
    sequence = Sequence.from_request(sequence_id, make_request(f"r{sequence_id}", num_prompt))
    sequence.block_table = [10 * sequence_id, 10 * sequence_id + 1]
    return sequence


def test_an_empty_draft_is_no_plan_and_keeps_the_released_rows(rows):
    rows.release(rows.take())
    assert StepDraft(1, 0.0, 8, rows).build() is None
    assert rows.pop_released() == (1,)


def test_a_sequence_takes_a_row_with_its_first_chunk_and_tells_its_whole_table(rows):
    draft, sequence = StepDraft(3, 5.0, 8, rows), make_sequence()
    sequence.output_token_ids.append(9)
    sequence.num_tokens = 7
    draft.add(sequence, 2)
    plan = draft.build()
    (start,) = plan.row_starts
    assert (start.row, start.sequence_id, start.output_token_ids) == (1, 1, (9,))
    assert start.prompt_token_ids == sequence.prompt_token_ids
    assert plan.block_appends == (BlockAppend(1, 0, (10, 11)),)
    assert (sequence.row, sequence.last_step, sequence.first_scheduled_time) == (1, 3, 5.0)


def test_later_steps_say_only_what_changed(rows):
    sequence = make_sequence()
    first = StepDraft(1, 0.0, 8, rows)
    first.add(sequence, 2)
    first.build()
    second = StepDraft(2, 1.0, 8, rows)
    sequence.block_table += [12, 13]
    second.append_blocks(sequence, [12, 13])
    second.add(sequence, 2)
    plan = second.build()
    assert plan.row_starts == () and plan.released_rows == ()
    assert plan.block_appends == (BlockAppend(1, 2, (12, 13)),)
    assert sequence.first_scheduled_time == 0.0


def test_only_chunks_that_reach_the_last_token_are_sampled(rows):
    draft = StepDraft(1, 0.0, 20, rows)
    whole, part, other = (make_sequence(sequence_id) for sequence_id in (1, 2, 3))
    draft.add(whole, 6)
    draft.add(part, 5)
    draft.add(other, 6)
    plan = draft.build()
    assert plan.logit_rows == (5, 16) and draft.sampled == [whole, other]
    assert draft.sequences == [whole, part, other] and plan.num_tokens == 17
    assert draft.num_left == 3
    assert (whole.num_tokens, part.num_tokens) == (7, 6)  # a token is on its way, or none
