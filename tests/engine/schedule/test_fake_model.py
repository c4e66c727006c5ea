"""The fake model detects every violation of the guarantees of a plan."""

from dataclasses import replace

import pytest

from app.contract.sampling_params import SamplingParams
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.sequence import UNKNOWN_TOKEN_ID
from app.engine.schedule.step_plan import BlockCopy, Chunk, Chunks, RowStart, SampleRow, StepPlan, TableWrite
from tests.engine.schedule.fake_model import FakeModel, StepFailed
from tests.engine.schedule.fake_tokens import reference

PROMPT = (11, 12, 13, 14, 15, 16)


def start(row, *, prompt=PROMPT, choice=0, output=(), **params):
    """The start of row `row`, whose sequence has the same id."""
    given = SamplingParams(**{"seed": 0, "max_tokens": 9, **params})
    return RowStart(row, row, choice, RowSampling.of(given), prompt, output)


def plan(step, chunks=(), *, sampled=None, **given):
    """A plan whose chunks are (row, start, tokens); `sampled` is {token row: rows that sample from it}."""
    sampled = sampled or {}
    return StepPlan(
        step,
        Chunks.of(Chunk(row, row, first, tuple(tokens)) for row, first, tokens in chunks),
        tuple(token_row for token_row, rows in sampled.items() for _ in rows),
        tuple(SampleRow(row, row) for rows in sampled.values() for row in rows),
        **given,
    )


@pytest.fixture
def model():
    return FakeModel(block_size=4)


@pytest.fixture
def started(model):
    """A model whose row 1 has PROMPT in blocks 1 and 2 and one sampled token; no step is in flight."""
    model.run(
        plan(1, [(1, 0, PROMPT)], sampled={5: [1]}, row_starts=(start(1),), table_writes=(TableWrite(1, 0, (1, 2)),))
    )
    model.done(1)
    return model


def output(count, choice=0):
    return reference(PROMPT, count, choice)


def fork(step, **given):
    """A plan in which row 2 starts as a fork of row 1 and shares its blocks, and row 1 continues."""
    return plan(
        step,
        [(1, 6, output(1)), (2, 6, output(1, 1))],
        sampled={0: [1], 1: [2]},
        row_starts=(start(2, choice=1, output=tuple(output(1, 1))),),
        table_writes=(TableWrite(2, 0, (1, 2)), TableWrite(2, 1, (3,))),
        **given,
    )


# --- Valid plans --------------------------------------------------------------------------------------------------


def test_the_next_token_depends_on_all_tokens_the_choice_and_the_seed():
    first = reference(PROMPT, 3)
    assert (
        len(
            {
                tuple(first),
                tuple(reference(PROMPT[1:], 3)),
                *[tuple(reference(PROMPT, 3, 1)), tuple(reference(PROMPT, 3, 0, 5))],
            }
        )
        == 4
    )


def test_a_prompt_in_chunks_gives_the_reference_output(model):
    starts, table = (start(1),), (TableWrite(1, 0, (7, 3)),)
    assert model.run(plan(1, [(1, 0, PROMPT[:5])], row_starts=starts, table_writes=table)).samples == ()
    model.done(1)
    (sample,) = model.run(plan(2, [(1, 5, PROMPT[5:])], sampled={0: [1]})).samples
    assert [sample.token_id] == output(1)


def test_choices_of_one_prompt_sample_from_one_token_row(model):
    starts = (start(1), start(2, choice=1))
    tables = (TableWrite(1, 0, (1, 2)), TableWrite(2, 0, (1, 2)))
    result = model.run(plan(1, [(1, 0, PROMPT)], sampled={5: [1, 2]}, row_starts=starts, table_writes=tables))
    assert [sample.token_id for sample in result.samples] == [*output(1), *output(1, 1)]


def test_a_fork_that_copies_before_it_writes_goes_on_with_its_own_output(started):
    result = started.run(fork(2, copies=(BlockCopy(2, 3),)))
    assert [sample.token_id for sample in result.samples] == [output(2)[1], output(2, 1)[1]]


def test_blocks_come_back_from_host_memory(started):
    started.run(plan(2, released_rows=(1,), swap_outs=(BlockCopy(1, 9), BlockCopy(2, 8))))
    started.done(2)
    swapped_in = plan(
        3,
        [(1, 6, output(1))],
        sampled={0: [1]},
        swap_ins=(BlockCopy(9, 5), BlockCopy(8, 6)),
        row_starts=(start(1, output=tuple(output(1))),),
        table_writes=(TableWrite(1, 0, (5, 6)),),
    )
    assert [sample.token_id for sample in started.run(swapped_in).samples] == output(2)[1:]


def test_a_step_ahead_may_have_an_unknown_last_token(started):
    started.run(plan(2, [(1, 6, output(1))], sampled={0: [1]}))
    (sample,) = started.run(plan(3, [(1, 7, (UNKNOWN_TOKEN_ID,))], sampled={0: [1]})).samples
    assert sample.token_id == output(3)[2]


def test_costs_are_counted_in_tokens_context_blocks_and_steps():
    from tests.engine.schedule.fake_model import Costs

    model = FakeModel(4, Costs(per_token=1.0, per_context=100.0, per_block=0.5, per_step=10_000.0))
    result = model.run(
        plan(
            1,
            [(1, 0, PROMPT)],
            sampled={5: [1]},
            row_starts=(start(1),),
            table_writes=(TableWrite(1, 0, (1, 2)),),
            swap_outs=(BlockCopy(3, 1), BlockCopy(4, 2)),
        )
    )
    assert (result.duration_s, result.transfer_s) == (6 + 100 * 21 + 10_000, 1.0)


# --- Invalid plans --------------------------------------------------------------------------------------------------

NEXT = [(1, 6, output(1))]
INVALID = {
    "a row is started twice": (plan(2, NEXT, sampled={0: [1]}, row_starts=(start(1),)), "the row is taken"),
    "a token is of another sequence": (plan(2, [(1, 6, (999,))], sampled={0: [1]}), "tokens of another sequence"),
    "an earlier token is of another sequence": (
        plan(2, [(1, 5, (999, output(1)[0]))], sampled={1: [1]}),
        "tokens of another sequence",
    ),
    "a known token is marked as unknown": (
        plan(2, [(1, 6, (UNKNOWN_TOKEN_ID,))], sampled={0: [1]}),
        "the token is already known",
    ),
    "no row samples after the last token": (plan(2, NEXT), "exactly the rows with all tokens computed"),
    "a row samples before its last token": (
        plan(2, [(1, 5, PROMPT[5:])], sampled={0: [1]}),
        "exactly the rows with all tokens computed",
    ),
    "a row computes two chunks": (plan(2, [*NEXT, *NEXT], sampled={0: [1], 1: [1]}), "two chunks in one row"),
    "a shared block is written": (fork(2), "reads other tokens|is shared and written"),
    "block 0 is allocated": (plan(2, NEXT, sampled={0: [1]}, table_writes=(TableWrite(1, 2, (0,)),)), "block 0"),
    "a table has a hole": (plan(2, NEXT, sampled={0: [1]}, table_writes=(TableWrite(1, 3, (4,)),)), "has a hole"),
    "a copy goes to a block in a table": (plan(2, NEXT, sampled={0: [1]}, copies=(BlockCopy(1, 2),)), "is overwritten"),
    "a copy of a copy": (plan(2, copies=(BlockCopy(2, 3), BlockCopy(3, 4))), "a copy of a copy"),
    "two copies go to one block": (plan(2, copies=(BlockCopy(1, 3), BlockCopy(2, 3))), "two copies"),
    "a block is swapped in that was not swapped out": (
        plan(2, swap_ins=(BlockCopy(1, 3),)),
        "nothing was copied to host block 1",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_plan_is_rejected_in_which(name, started):
    invalid, message = INVALID[name]
    with pytest.raises(AssertionError, match=message):
        started.run(invalid)


def test_a_block_that_was_never_filled_is_detected(started):
    """An entry of the table is replaced by a block with other content."""
    with pytest.raises(AssertionError, match="reads other tokens than its own in block 4"):
        started.run(plan(2, NEXT, sampled={0: [1]}, table_writes=(TableWrite(1, 0, (4,)),)))


def test_a_block_shared_across_seeds_is_detected(started):
    other = plan(
        2,
        [(2, 4, PROMPT[4:])],
        sampled={1: [2]},
        row_starts=(start(2, seed=1),),
        table_writes=(TableWrite(2, 0, (1, 3)),),
    )
    with pytest.raises(AssertionError, match="reads other tokens than its own in block 1"):
        started.run(other)
    same = replace(other, row_starts=(start(3),))
    assert same.row_starts != other.row_starts


def test_sampling_after_tokens_of_another_sequence_is_detected(started):
    starts, tables = (start(2, prompt=PROMPT[:5]),), (TableWrite(2, 0, (3, 4)),)
    with pytest.raises(AssertionError, match="sampled after tokens of another sequence"):
        started.run(plan(2, NEXT, sampled={0: [1, 2]}, row_starts=starts, table_writes=tables))


@pytest.mark.parametrize("is_done", [False, True])
def test_a_block_is_not_reused_while_a_step_in_flight_may_touch_it(started, is_done):
    started.run(plan(2, NEXT, sampled={0: [1]}))
    if is_done:
        started.done(2)
    other = (21, 22)
    reusing = plan(
        3,
        [(2, 0, other)],
        sampled={1: [2]},
        released_rows=(1,),
        row_starts=(start(2, prompt=other),),
        table_writes=(TableWrite(2, 0, (1,)),),
    )
    if is_done:
        started.run(reusing)
    else:
        with pytest.raises(AssertionError, match="a step in flight may still touch the block"):
            started.run(reusing)


@pytest.mark.parametrize("is_late", [False, True])
def test_data_written_by_a_failed_step_is_garbage(started, is_late):
    with pytest.raises(StepFailed):
        started.fail(plan(2, NEXT, sampled={0: [1]}), StepFailed(), is_late=is_late)
    again = plan(
        3,
        [(1, 7, output(2)[1:])],
        sampled={0: [1]},
        released_rows=(1,),
        row_starts=(start(1, output=tuple(output(2))),),
        table_writes=(TableWrite(1, 0, (1, 2)),),
    )
    with pytest.raises(AssertionError, match="reads other tokens than its own in block 2"):
        started.run(again)
