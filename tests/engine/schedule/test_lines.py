"""Lines: one place for each unfinished sequence."""

import pytest

from app.engine.schedule.lines import SequenceLines
from app.engine.schedule.policy import fcfs
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Sequence
from tests.engine.schedule.fake_model import make_request


@pytest.fixture
def lines() -> SequenceLines:
    return SequenceLines(num_rows=4)


def add(lines: SequenceLines, sequence_id: int) -> Sequence:
    request = make_request(f"r{sequence_id}", arrival_time=float(sequence_id))
    sequence = Sequence.from_request(sequence_id, request)
    sequence.sort_key = fcfs(sequence)
    lines.add(sequence)
    return sequence


def test_preempted_sequences_start_before_waiting_ones(lines):
    waiting, preempted = add(lines, 1), add(lines, 2)
    assert lines.next_to_start is waiting
    lines.move(preempted, RUNNING)
    lines.move(preempted, PREEMPTED)
    assert lines.next_to_start is preempted


@pytest.mark.parametrize("path", [(), (RUNNING, PREEMPTED), (RUNNING, PAUSED)])
def test_who_is_not_ready_is_not_offered(lines, path):
    sequence = add(lines, 1)
    for status in path:
        lines.move(sequence, status)
    lines.set_ready(sequence, False)
    assert not lines.has_ready and lines.next_to_start is None
    lines.set_ready(sequence, True)
    assert lines.has_ready
    lines.check_integrity()


@pytest.mark.parametrize("status", [PAUSED, PREEMPTED, FINISHED])
def test_who_stops_running_gives_its_row_back(lines, status):
    sequence = add(lines, 1)
    lines.move(sequence, RUNNING)
    sequence.row = lines.rows.take()
    lines.move(sequence, status)
    assert sequence.row is None and lines.rows.pop_released() == (1,)
    lines.check_integrity()


def test_a_finished_sequence_leaves(lines):
    sequence = add(lines, 1)
    lines.move(sequence, FINISHED)
    assert lines.check_integrity() == []


def test_an_illegal_move_changes_nothing(lines):
    sequence = add(lines, 1)
    with pytest.raises(ValueError, match="from waiting to paused"):
        lines.move(sequence, PAUSED)
    assert sequence.status is WAITING
    assert lines.check_integrity() == [sequence]


def test_integrity_notices_a_state_changed_behind_its_back(lines):
    sequence = add(lines, 1)
    sequence.status = RUNNING
    with pytest.raises(AssertionError, match="is in the line of"):
        lines.check_integrity()


def test_integrity_notices_a_sequence_in_two_lines(lines):
    sequence = add(lines, 1)
    lines.move(sequence, RUNNING)
    lines.running.append(sequence)
    with pytest.raises(AssertionError, match="two lines"):
        lines.check_integrity()
