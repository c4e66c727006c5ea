"""Sequences: tokens by position, forks, and integrity."""

import pytest

from app.engine.schedule.sequence import (
    FINISHED,
    HOLDING,
    PAUSED,
    PREEMPTED,
    RUNNING,
    SWAPPED,
    TRANSITIONS,
    UNKNOWN_TOKEN_ID,
    WAITING,
    Sequence,
    SequenceStatus,
)
from tests.engine.schedule.fake_groups import make_group


def make_sequence(num_prompt: int = 3, max_tokens: int = 5) -> Sequence:
    return make_group(1, num_prompt, max_tokens).open[0]


# --- The transition table ---------------------------------------------------------------------------------------


def test_every_state_can_change_to_finished_which_is_final():
    assert all(FINISHED in TRANSITIONS[status] for status in SequenceStatus if status is not FINISHED)
    assert TRANSITIONS[FINISHED] == frozenset()


def test_only_sequences_with_blocks_can_be_paused_swapped_or_preempted():
    assert {status for status in SequenceStatus if PAUSED in TRANSITIONS[status]} == {RUNNING}
    assert {status for status in SequenceStatus if SWAPPED in TRANSITIONS[status]} == set(HOLDING)
    assert {status for status in SequenceStatus if PREEMPTED in TRANSITIONS[status]} == {*HOLDING, SWAPPED}


# --- Counts and tokens ------------------------------------------------------------------------------------------


def test_a_new_sequence_waits_without_output_and_row():
    sequence = make_sequence()
    assert sequence.status is WAITING and not sequence.is_finished
    assert sequence.num_tokens == 3 and sequence.output_token_ids == [] and sequence.row is None


def test_a_sequence_has_the_status_of_its_group_until_it_ends():
    sequence = make_sequence()
    sequence.group.status = RUNNING
    assert sequence.status is RUNNING
    sequence.is_finished = True
    assert sequence.status is FINISHED


def test_the_last_token_of_an_output_needs_no_slot():
    assert make_sequence(num_prompt=3, max_tokens=5).max_slots == 7
    assert make_sequence(num_prompt=3, max_tokens=1).max_slots == 3


def test_num_left_counts_tokens_that_are_not_scheduled():
    sequence = make_sequence(num_prompt=3, max_tokens=2)
    assert sequence.num_left == 3
    sequence.num_scheduled = 3
    sequence.num_tokens = 4
    assert sequence.num_left == 1
    sequence.num_scheduled = 4
    sequence.num_tokens = 5
    assert sequence.num_left == 0


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("end", range(1, 6))
def test_tokens_are_prompt_and_output_by_position(start, end):
    sequence = make_sequence(num_prompt=3)
    sequence.output_token_ids += [7, 8]
    if start < end:
        assert sequence.tokens(start, end) == (*sequence.prompt_token_ids, 7, 8)[start:end]


def test_a_token_still_being_sampled_is_unknown():
    sequence = make_sequence(num_prompt=3)
    assert sequence.tokens(3, 4) == (UNKNOWN_TOKEN_ID,)


# --- Forks ------------------------------------------------------------------------------------------------------


def test_a_fork_has_the_same_tokens_and_counts_but_no_blocks_and_no_row():
    parent = make_sequence()
    parent.output_token_ids.append(7)
    parent.num_tokens, parent.num_scheduled, parent.num_computed, parent.num_kept, parent.last_step = 5, 4, 3, 1, 9
    parent.block_table, parent.row = [1, 2], 3
    fork = parent.fork(77, 2)
    assert (fork.id, fork.choice, fork.group, fork.max_slots) == (77, 2, parent.group, parent.max_slots)
    assert (fork.num_tokens, fork.num_scheduled, fork.num_computed, fork.num_kept, fork.last_step) == (5, 4, 3, 1, 9)
    assert fork.tokens(0, 4) == parent.tokens(0, 4)
    assert fork.block_table == [] and fork.row is None
    fork.output_token_ids.append(8)
    assert parent.output_token_ids == [7]


def test_start_at_resets_the_counts_and_keeps_the_output():
    sequence = make_sequence(num_prompt=3)
    sequence.output_token_ids += [7, 8]
    sequence.num_tokens, sequence.num_scheduled, sequence.num_computed, sequence.num_kept = 5, 4, 4, 2
    sequence.start_at(0)
    assert sequence.num_left == 5 and sequence.num_computed == sequence.num_kept == 0
    assert sequence.output_token_ids == [7, 8]


# --- Integrity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, broken, message",
    [
        (WAITING, {"num_tokens": 4}, "miscounted"),
        (WAITING, {"num_computed": 1}, "computed too much"),
        (WAITING, {"num_scheduled": -1}, "computed too much"),
        (WAITING, {"block_table": [1, 2]}, "holds blocks"),
        (PREEMPTED, {"host_table": [1, 2]}, "holds host blocks"),
        (RUNNING, {"host_table": [1, 2]}, "holds host blocks"),
        (RUNNING, {"block_table": [1], "num_scheduled": 3}, "tokens without slots"),
        (RUNNING, {"block_table": [1], "num_tokens": 6, "output_token_ids": [7, 8, 9]}, "without all its blocks"),
        (RUNNING, {"block_table": [1, 2, 3, 4, 5]}, "blocks it cannot use"),
        (RUNNING, {"block_table": [1, 2], "num_kept": 1}, "without a description"),
        (SWAPPED, {"host_table": [1], "num_scheduled": 3}, "tokens without slots"),
    ],
)
def test_integrity_detects_inconsistent_sequences(status, broken, message):
    sequence = make_sequence(num_prompt=3, max_tokens=5)
    sequence.check_integrity(num_promised=0, block_size=2)
    sequence.group.status = status
    for name, value in broken.items():
        setattr(sequence, name, value)
    with pytest.raises(AssertionError, match=message):
        sequence.check_integrity(num_promised=0, block_size=2)


def test_integrity_counts_promised_tokens_of_steps_in_flight():
    sequence = make_sequence(num_prompt=3)
    sequence.num_tokens = 5
    sequence.check_integrity(num_promised=2, block_size=2)
    with pytest.raises(AssertionError, match="miscounted"):
        sequence.check_integrity(num_promised=1, block_size=2)


def test_integrity_detects_tokens_computed_beyond_the_end():
    sequence = make_sequence(num_prompt=3, max_tokens=1)
    sequence.group.status, sequence.block_table = RUNNING, [1, 2]
    sequence.num_tokens = sequence.num_scheduled = 4
    with pytest.raises(AssertionError, match="computed more than it can use"):
        sequence.check_integrity(num_promised=1, block_size=2)
