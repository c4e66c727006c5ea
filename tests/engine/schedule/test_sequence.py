"""Sequences: the transition table, and tokens by position."""

from itertools import product

import pytest

from app.engine.schedule.sequence import (
    FINISHED,
    PAUSED,
    PREEMPTED,
    RUNNING,
    TRANSITIONS,
    UNKNOWN_TOKEN_ID,
    WAITING,
    Sequence,
    SequenceStatus,
)
from tests.engine.schedule.fake_model import make_request


def make_sequence(num_prompt: int = 3, max_tokens: int = 5) -> Sequence:
    return Sequence.from_request(1, make_request("a", num_prompt, max_tokens))


@pytest.mark.parametrize("before, after", list(product(SequenceStatus, repeat=2)))
def test_a_state_changes_only_along_the_table(before, after):
    sequence = make_sequence()
    sequence.status = before
    if after in TRANSITIONS[before]:
        sequence.move_to(after)
        assert sequence.status is after
    else:
        with pytest.raises(ValueError, match=rf"from {before.value} to {after.value}"):
            sequence.move_to(after)
        assert sequence.status is before


def test_every_live_state_can_finish_and_a_finished_one_never_leaves():
    assert all(FINISHED in TRANSITIONS[status] for status in SequenceStatus if status is not FINISHED)
    assert TRANSITIONS[FINISHED] == frozenset()


def test_only_sequences_with_blocks_can_pause_or_be_preempted():
    assert {status for status in SequenceStatus if PAUSED in TRANSITIONS[status]} == {RUNNING}
    assert {status for status in SequenceStatus if PREEMPTED in TRANSITIONS[status]} == {RUNNING, PAUSED}


def test_a_new_sequence_waits_and_is_ready():
    sequence = make_sequence()
    assert sequence.status is WAITING and sequence.ready
    assert sequence.num_tokens == 3 and sequence.output_token_ids == [] and sequence.row is None


def test_the_last_token_of_an_answer_needs_no_slot():
    assert make_sequence(num_prompt=3, max_tokens=5).max_slots == 7
    assert make_sequence(num_prompt=3, max_tokens=1).max_slots == 3


def test_num_left_counts_what_no_step_was_given():
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


@pytest.mark.parametrize(
    "broken, message",
    [
        ({"num_tokens": 4}, "miscounted"),
        ({"num_computed": 1}, "computed too much"),
        ({"block_table": [1]}, "holds blocks"),
        ({"status": RUNNING, "block_table": [1], "num_scheduled": 3}, "tokens without slots"),
        ({"status": RUNNING, "block_table": []}, "without all its blocks"),
        ({"status": RUNNING, "block_table": [1, 2, 3, 4, 5]}, "blocks it cannot use"),
        ({"status": RUNNING, "block_table": [1, 2], "ready": False}, "does not pause"),
        ({"status": PAUSED, "block_table": [1, 2], "is_protected": True}, "nobody may take"),
    ],
)
def test_integrity_notices_what_does_not_fit_together(broken, message):
    sequence = make_sequence(num_prompt=3, max_tokens=5)
    sequence.check_integrity(num_promised=0, block_size=2)
    for name, value in broken.items():
        setattr(sequence, name, value)
    with pytest.raises(AssertionError, match=message):
        sequence.check_integrity(num_promised=0, block_size=2)
