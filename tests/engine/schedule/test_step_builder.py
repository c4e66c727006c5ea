"""The step plan builder: rows, tables, chunks, samples and drafts of a step."""

import pytest

from app.engine.schedule.kv.swap_space import Swaps
from app.engine.schedule.queues import RowPool
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID, Sequence
from app.engine.schedule.step_builder import StepPlanBuilder
from app.engine.schedule.step_plan import BlockCopy, Chunk, SampleRow, TableWrite
from tests.engine.schedule.fake_groups import make_running_group

NO_SWAPS = Swaps()


@pytest.fixture
def rows() -> RowPool:
    return RowPool(4)


def make_builder(rows: RowPool, step: int = 1, now: float = 0.0, max_tokens: int = 20) -> StepPlanBuilder:
    return StepPlanBuilder(step, now, max_tokens, rows)


def make_sequence(group_id: int = 1, num_prompt: int = 6, **given) -> Sequence:
    sequence = make_running_group(group_id, num_prompt, 8, **given).open[0]
    sequence.block_table = [10 * group_id, 10 * group_id + 1]
    return sequence


def make_decoding(rows: RowPool, group_id: int = 1) -> Sequence:
    """A sequence whose prompt was computed in step 1, and whose first token is known."""
    sequence = make_sequence(group_id)
    make_builder(rows).add(sequence, 6)
    sequence.output_token_ids.append(9)
    return sequence


# --- Rows and tables --------------------------------------------------------------------------------------------


def test_the_first_chunk_of_a_sequence_starts_a_row_with_its_table(rows):
    builder, sequence = make_builder(rows, step=3, now=5.0), make_sequence()
    sequence.output_token_ids.append(9)
    sequence.num_tokens = 7
    builder.add(sequence, 2)
    plan = builder.build(NO_SWAPS, ())
    (start,) = plan.row_starts
    assert (start.row, start.sequence_id, start.choice, start.output_token_ids) == (1, sequence.id, 0, (9,))
    assert start.prompt_token_ids == sequence.prompt_token_ids and start.sampling is sequence.group.sampling
    assert plan.table_writes == (TableWrite(1, 0, (10, 11)),)
    group = sequence.group
    assert (sequence.row, sequence.last_step, group.last_step, group.first_scheduled_time) == (1, 3, 3, 5.0)


def test_later_steps_have_only_changes(rows):
    sequence = make_sequence()
    make_builder(rows).add(sequence, 2)
    later = make_builder(rows, step=2, now=1.0)
    sequence.block_table += [12, 13]
    later.write_blocks(sequence, 2, [12, 13])
    later.add(sequence, 2)
    plan = later.build(NO_SWAPS, ())
    assert plan.row_starts == () and plan.released_rows == ()
    assert plan.table_writes == (TableWrite(1, 2, (12, 13)),)
    assert sequence.group.first_scheduled_time == 0.0


def test_a_replaced_block_is_written_at_its_index(rows):
    sequence = make_decoding(rows)
    later = make_builder(rows, step=2)
    sequence.block_table[1] = 12
    later.write_blocks(sequence, 1, [12])
    later.add(sequence, 1)
    assert later.build(NO_SWAPS, ()).table_writes == (TableWrite(1, 1, (12,)),)


def test_blocks_of_a_starting_row_are_written_once(rows):
    builder, sequence = make_builder(rows), make_sequence()
    builder.write_blocks(sequence, 1, [11])
    builder.write_blocks(sequence, 0, [10])
    builder.add(sequence, 6)
    assert builder.build(NO_SWAPS, ()).table_writes == (TableWrite(1, 0, (10, 11)),)


def test_released_rows_swaps_and_copies_are_in_the_plan(rows):
    rows.release(rows.take())
    builder = make_builder(rows)
    builder.add(make_sequence(), 6)
    swaps = Swaps(outs=(BlockCopy(1, 2),), ins=(BlockCopy(3, 4),))
    plan = builder.build(swaps, (BlockCopy(5, 6),))
    assert (plan.swap_outs, plan.swap_ins, plan.copies) == (swaps.outs, swaps.ins, (BlockCopy(5, 6),))
    assert plan.released_rows == (1,) and rows.pop_released() == ()


# --- Chunks and samples -----------------------------------------------------------------------------------------


def test_only_chunks_that_reach_the_last_token_are_sampled(rows):
    builder = make_builder(rows)
    full, part, other = (make_sequence(group_id) for group_id in (1, 2, 3))
    builder.add(full, 6)
    builder.add(part, 5)
    builder.add(other, 6)
    plan = builder.build(NO_SWAPS, ())
    assert plan.logit_rows == (5, 16) and builder.sampling == [full, other]
    assert plan.sampled == (SampleRow(full.row, full.id), SampleRow(other.row, other.id))
    assert builder.sequences == [full, part, other] and plan.num_tokens == 17
    assert builder.num_left == 3
    assert (full.num_tokens, part.num_tokens) == (7, 6)  # with a promised token, or without


def test_forks_sample_from_the_token_row_of_their_leader(rows):
    builder = make_builder(rows)
    leader, *others = make_running_group(1, num_prompt=6, n=3).open
    for sequence in (leader, *others):
        sequence.block_table = [7, 8]
    builder.add(leader, 6)
    for sequence in others:
        builder.sample_fork(sequence)
    plan = builder.build(NO_SWAPS, ())
    assert plan.logit_rows == (5, 5, 5)
    assert [row.sequence_id for row in plan.sampled] == [10, 11, 12]
    assert len(plan.chunks) == 1 and len(plan.row_starts) == 3 and plan.num_tokens == 6
    assert {write.block_ids for write in plan.table_writes} == {(7, 8)}
    assert [sequence.num_tokens for sequence in (leader, *others)] == [7, 7, 7]
    assert all(sequence.last_step == 1 for sequence in others)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_add_next_gives_the_same_step_as_add(is_known, count):
    def second_step(uses_add_next: bool):
        rows = RowPool(4)
        sequences = [make_decoding(rows, group_id) for group_id in range(1, count + 1)]
        if not is_known:
            for sequence in sequences:
                sequence.output_token_ids.clear()
        builder = make_builder(rows, step=2)
        if uses_add_next:
            builder.add_next(sequences)
        else:
            for sequence in sequences:
                builder.add(sequence, 1)
        counts = (builder.num_left, builder.num_tokens, builder.num_attended, builder.has_decodes, builder.has_chunks)
        after = [(one.num_scheduled, one.num_tokens, one.last_step, one.group.last_step) for one in sequences]
        assert builder.sequences == builder.sampling == sequences
        return builder.build(NO_SWAPS, ()), counts, after

    plan, *rest = second_step(uses_add_next=True)
    assert (plan, *rest) == second_step(uses_add_next=False)
    token_id = 9 if is_known else UNKNOWN_TOKEN_ID
    assert tuple(plan.chunks) == tuple(Chunk(number, 10 * number, 6, (token_id,)) for number in range(1, count + 1))


# --- Counts -----------------------------------------------------------------------------------------------------


def test_attended_tokens_are_summed_over_new_tokens(rows):
    builder = make_builder(rows)
    sequence = make_sequence(num_prompt=5)
    builder.add(sequence, 3)
    assert builder.num_attended == 1 + 2 + 3
    later = make_builder(rows, step=2)
    later.add(sequence, 2)
    assert later.num_attended == 4 + 5


def test_prompt_tokens_are_counted_without_output_tokens(rows):
    builder = make_builder(rows)
    restarted = make_sequence(num_prompt=3)
    restarted.output_token_ids += [5, 6]
    restarted.num_tokens = 5
    builder.add(restarted, 5)
    builder.add(make_sequence(2, num_prompt=4), 2)
    assert builder.build(NO_SWAPS, ()).num_prompt_tokens == 3 + 2


def test_a_next_token_is_a_decode_and_prompt_tokens_are_chunks(rows):
    decoding = make_decoding(rows)
    builder = make_builder(rows, step=2)
    assert (builder.has_decodes, builder.has_chunks) == (False, False)
    builder.add(decoding, 1)
    assert (builder.has_decodes, builder.has_chunks) == (True, False)
    builder.add(make_sequence(2, num_prompt=1), 1)  # the last token of a prompt: no output yet
    assert (builder.has_decodes, builder.has_chunks) == (True, True)


# --- Drafts -----------------------------------------------------------------------------------------------------


def test_a_sequence_with_a_draft_is_sampled_after_each_draft_token_too(rows):
    first, second, third = (make_decoding(rows, group_id) for group_id in (1, 2, 3))
    builder = make_builder(rows, step=2)
    builder.add_next([first, second, third])
    builder.add_draft(1, (7, 8))
    builder.add_draft(2, (6,))
    plan = builder.build(NO_SWAPS, ())
    assert [chunk.token_ids for chunk in plan.chunks] == [(9,), (9, 7, 8), (9, 6)]
    assert plan.logit_rows == (0, 1, 2, 3, 4, 5)
    assert [sampled.sequence_id for sampled in plan.sampled] == [10, 20, 20, 20, 30, 30]
    assert builder.sampling == [first, second, second, second, third, third]
    assert (plan.num_tokens, plan.num_draft_tokens, builder.num_left) == (6, 3, 14)
    assert builder.num_attended == 7 + (7 + 8 + 9) + (7 + 8)


def test_a_chunk_without_a_sample_keeps_its_row_between_drafts(rows):
    """The sequence recomputes its output, one token in this step, and more tokens are left."""
    first, last = make_decoding(rows, 1), make_decoding(rows, 3)
    recomputing = make_sequence(2)
    recomputing.output_token_ids += [4, 5, 6]
    recomputing.num_tokens, recomputing.num_scheduled = 9, 6
    builder = make_builder(rows, step=2)
    for sequence in (first, recomputing, last):
        builder.add(sequence, 1)
    builder.add_draft(0, (7, 8))
    builder.add_draft(2, (6,))
    plan = builder.build(NO_SWAPS, ())
    assert [chunk.token_ids for chunk in plan.chunks] == [(9, 7, 8), (4,), (9, 6)]
    assert plan.logit_rows == (0, 1, 2, 4, 5)


def test_draft_tokens_do_not_count_before_they_are_accepted(rows):
    plain, drafting = make_decoding(rows, 1), make_decoding(rows, 2)
    builder = make_builder(rows, step=2)
    builder.add_next([plain, drafting])
    assert builder.promised == [plain, drafting]
    builder.add_draft(1, (7, 8))
    assert (plain.num_tokens, plain.num_scheduled) == (8, 7)
    assert (drafting.num_tokens, drafting.num_scheduled, drafting.num_left) == (7, 7, 0)
    assert builder.promised == [plain]
    builder.build(NO_SWAPS, ())
    assert builder.promised == [plain]
