"""Lines: one place for each unfinished group, and its seats and rows."""

import pytest

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.queues import SequenceQueues
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, SWAPPED, WAITING
from tests.engine.schedule.fake_groups import make_group


@pytest.fixture
def lines() -> SequenceQueues:
    return SequenceQueues(num_rows=6)


def add(lines: SequenceQueues, group_id: int, *path, **params) -> SequenceGroup:
    """A group in line that went along `path`."""
    group = make_group(group_id, **params)
    lines.add(group)
    for status in path:
        lines.move(group, status)
    return group


# --- Whose turn it is -------------------------------------------------------------------------------------------


def test_a_line_is_in_the_order_of_the_sort_keys_whoever_came_first(lines):
    groups = [add(lines, number) for number in (3, 1, 2)]
    assert lines.waiting == sorted(groups, key=lambda group: group.id)
    assert lines.check_integrity()


@pytest.mark.parametrize("status", [PREEMPTED, SWAPPED])
def test_who_lost_its_blocks_starts_in_its_turn_among_those_that_never_had_any(lines, status):
    groups = [add(lines, 1), add(lines, 2, RUNNING, status), add(lines, 3), add(lines, 4, RUNNING, status)]
    assert lines.returning == groups[1::2] and lines.waiting == groups[::2]
    for group in groups:
        assert lines.next_to_start is group
        lines.move(group, RUNNING)
    assert lines.next_to_start is None


@pytest.mark.parametrize("path", [(), (RUNNING, PREEMPTED), (RUNNING, SWAPPED), (RUNNING, PAUSED)])
def test_who_is_not_ready_is_not_offered(lines, path):
    group = add(lines, 1, *path)
    lines.set_ready(group, False)
    assert not lines.has_ready and lines.next_to_start is None and lines.resuming == []
    lines.set_ready(group, True)
    assert lines.has_ready
    lines.check_integrity()


def test_paused_groups_whose_readers_want_tokens_again_are_resuming(lines):
    group = add(lines, 1, RUNNING, PAUSED)
    lines.set_ready(group, False)
    assert (lines.paused, lines.resuming) == ([group], [])
    lines.set_ready(group, True)
    assert (lines.paused, lines.resuming) == ([], [group])


def test_a_running_group_stays_in_line_when_its_readers_want_no_more(lines):
    group = add(lines, 1, RUNNING)
    group.is_protected = True
    lines.set_ready(group, False)
    assert lines.running == [group] and lines.check_integrity() == [group]


def test_blocks_are_taken_from_paused_then_resuming_then_running_groups_the_last_in_order_first(lines):
    running = [add(lines, number, RUNNING) for number in (1, 2)]
    resuming = [add(lines, number, RUNNING, PAUSED) for number in (3, 4)]
    paused = [add(lines, number, RUNNING, PAUSED) for number in (5, 6)]
    for group in paused:
        lines.set_ready(group, False)
    add(lines, 7)
    add(lines, 8, RUNNING, PREEMPTED)
    assert list(lines.holding()) == [*reversed(paused), *reversed(resuming), *reversed(running)]


# --- Moves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [PAUSED, PREEMPTED, SWAPPED, FINISHED])
def test_who_stops_running_gives_rows_and_seats_back(lines, status):
    group = add(lines, 1, RUNNING, n=2)
    for sequence in group.open:
        sequence.row = lines.rows.take()
    assert lines.num_seats == 2
    lines.move(group, status)
    assert [sequence.row for sequence in group.sequences] == [None, None]
    assert lines.num_seats == 0 and set(lines.rows.pop_released()) == {1, 2}
    lines.check_integrity()


@pytest.mark.parametrize("params, seats", [({}, 1), ({"n": 3}, 3), ({"use_beam_search": True, "beam_width": 4}, 4)])
def test_a_group_takes_all_its_seats_from_the_start(lines, params, seats):
    group = add(lines, 1, RUNNING, **params)
    assert lines.num_seats == seats == group.num_seats
    lines.check_integrity()


def test_a_sequence_that_ends_alone_gives_its_row_and_seat_back(lines):
    group = add(lines, 1, RUNNING, n=3)
    group.unfold()
    first, second, third = group.open
    for sequence in group.open:
        sequence.row = lines.rows.take()
    lines.close(second)
    assert group.open == [first, third] and second.is_finished and second.row is None
    assert lines.num_seats == 2 and lines.rows.pop_released() == (2,)
    lines.check_integrity()


def test_a_sequence_that_ends_while_its_group_has_no_seats_frees_none(lines):
    group = add(lines, 1, RUNNING, PAUSED, n=3)
    lines.close(group.open[1])
    assert lines.num_seats == 0
    lines.check_integrity()


def test_a_row_is_released_once(lines):
    (sequence,) = add(lines, 1, RUNNING).open
    sequence.row = lines.rows.take()
    lines.release_row(sequence)
    lines.release_row(sequence)
    assert lines.rows.pop_released() == (1,) and lines.rows.num_free == 6


def test_a_finished_group_leaves(lines):
    add(lines, 1, FINISHED)
    assert lines.check_integrity() == []


def test_an_illegal_move_changes_nothing(lines):
    group = add(lines, 1)
    with pytest.raises(ValueError, match="from waiting to paused"):
        lines.move(group, PAUSED)
    assert group.status is WAITING
    assert lines.check_integrity() == [group]


# --- Integrity --------------------------------------------------------------------------------------------------


def change_state(lines, group):
    group.status = PAUSED


def stand_twice(lines, group):
    lines.running.append(group)


def reuse_an_id(lines, group):
    other = add(lines, 2)
    other.id = group.id


def change_key(lines, group):
    add(lines, 2, RUNNING)
    group.sort_key = (3.0, 3)


def take_a_seat(lines, group):
    lines.num_seats += 1


def take_a_row(lines, group):
    lines.rows.take()


def wait_with_a_row(lines, group):
    add(lines, 2).open[0].row = 6


@pytest.mark.parametrize(
    "breaking, message",
    [
        (change_state, "is in the line of"),
        (stand_twice, "out of order"),
        (reuse_an_id, "two groups have one id"),
        (change_key, "out of order"),
        (take_a_seat, "seats are miscounted"),
        (take_a_row, "a row is lost"),
        (wait_with_a_row, "a row without running"),
    ],
)
def test_integrity_notices(lines, breaking, message):
    group = add(lines, 1, RUNNING)
    breaking(lines, group)
    with pytest.raises(AssertionError, match=message):
        lines.check_integrity()


def test_integrity_notices_a_group_in_two_lines(lines):
    group = add(lines, 1, RUNNING)
    lines.returning.append(group)
    with pytest.raises(AssertionError, match="is in the line of"):
        lines.check_integrity()
