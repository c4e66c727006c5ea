"""Queues: each unfinished group is in one queue; seats and rows of groups."""

from itertools import product

import pytest

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.queues import RowPool, SequenceQueues
from app.engine.schedule.sequence import (
    FINISHED,
    PAUSED,
    PREEMPTED,
    RUNNING,
    SWAPPED,
    TRANSITIONS,
    WAITING,
    SequenceStatus,
)
from tests.engine.schedule.fake_groups import make_group


@pytest.fixture
def queues() -> SequenceQueues:
    return SequenceQueues(num_rows=6)


def add(queues: SequenceQueues, group_id: int, *path, **params) -> SequenceGroup:
    """Add a group and move it through the states of `path`."""
    group = make_group(group_id, **params)
    queues.add(group)
    for status in path:
        queues.move(group, status)
    return group


@pytest.mark.parametrize("before, after", list(product(SequenceStatus, repeat=2)))
def test_a_state_changes_only_along_the_table(queues, before, after):
    group = make_group()
    group.status = before
    if before is not FINISHED:
        queues.add(group)
    if after in TRANSITIONS[before]:
        queues.move(group, after)
        assert group.status is after and group.open[0].status is after
    else:
        with pytest.raises(ValueError, match=rf"request r1 cannot go from {before.value} to {after.value}"):
            queues.move(group, after)
        assert group.status is before


# --- Order of queues --------------------------------------------------------------------------------------------


def test_a_queue_is_in_the_order_of_the_sort_keys(queues):
    groups = [add(queues, number) for number in (3, 1, 2)]
    assert queues.waiting == sorted(groups, key=lambda group: group.id)
    assert queues.check_integrity()


@pytest.mark.parametrize("status", [PREEMPTED, SWAPPED])
def test_preempted_and_new_groups_start_in_one_order(queues, status):
    groups = [add(queues, 1), add(queues, 2, RUNNING, status), add(queues, 3), add(queues, 4, RUNNING, status)]
    assert queues.returning == groups[1::2] and queues.waiting == groups[::2]
    for group in groups:
        assert queues.next_to_start is group
        queues.move(group, RUNNING)
    assert queues.next_to_start is None


@pytest.mark.parametrize("path", [(), (RUNNING, PREEMPTED), (RUNNING, SWAPPED), (RUNNING, PAUSED)])
def test_a_group_that_is_not_ready_is_not_offered(queues, path):
    group = add(queues, 1, *path)
    queues.set_ready(group, False)
    assert not queues.has_ready and queues.next_to_start is None and queues.resuming == []
    queues.set_ready(group, True)
    assert queues.has_ready
    queues.check_integrity()


def test_paused_groups_that_are_ready_again_are_resuming(queues):
    group = add(queues, 1, RUNNING, PAUSED)
    queues.set_ready(group, False)
    assert (queues.paused, queues.resuming) == ([group], [])
    queues.set_ready(group, True)
    assert (queues.paused, queues.resuming) == ([], [group])


def test_a_protected_running_group_stays_running_when_not_ready(queues):
    group = add(queues, 1, RUNNING)
    group.is_protected = True
    queues.set_ready(group, False)
    assert queues.running == [group] and queues.check_integrity() == [group]


def test_holding_groups_are_paused_resuming_running_last_in_order_first(queues):
    running = [add(queues, number, RUNNING) for number in (1, 2)]
    resuming = [add(queues, number, RUNNING, PAUSED) for number in (3, 4)]
    paused = [add(queues, number, RUNNING, PAUSED) for number in (5, 6)]
    for group in paused:
        queues.set_ready(group, False)
    add(queues, 7)
    add(queues, 8, RUNNING, PREEMPTED)
    assert list(queues.holding()) == [*reversed(paused), *reversed(resuming), *reversed(running)]


# --- Moves ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [PAUSED, PREEMPTED, SWAPPED, FINISHED])
def test_a_group_that_stops_running_returns_rows_and_seats(queues, status):
    group = add(queues, 1, RUNNING, n=2)
    for sequence in group.open:
        sequence.row = queues.rows.take()
    assert queues.num_seats == 2
    queues.move(group, status)
    assert [sequence.row for sequence in group.sequences] == [None, None]
    assert queues.num_seats == 0 and set(queues.rows.pop_released()) == {1, 2}
    queues.check_integrity()


@pytest.mark.parametrize("params, seats", [({}, 1), ({"n": 3}, 3), ({"use_beam_search": True, "beam_width": 4}, 4)])
def test_a_group_takes_all_its_seats_from_the_start(queues, params, seats):
    group = add(queues, 1, RUNNING, **params)
    assert queues.num_seats == seats == group.num_seats
    queues.check_integrity()


def test_a_sequence_that_ends_returns_its_row_and_seat(queues):
    group = add(queues, 1, RUNNING, n=3)
    group.unfold()
    first, second, third = group.open
    for sequence in group.open:
        sequence.row = queues.rows.take()
    queues.close(second)
    assert group.open == [first, third] and second.is_finished and second.row is None
    assert queues.num_seats == 2 and queues.rows.pop_released() == (2,)
    queues.check_integrity()


def test_a_sequence_that_ends_while_its_group_has_no_seats_frees_none(queues):
    group = add(queues, 1, RUNNING, PAUSED, n=3)
    queues.close(group.open[1])
    assert queues.num_seats == 0
    queues.check_integrity()


def test_a_row_is_released_once(queues):
    (sequence,) = add(queues, 1, RUNNING).open
    sequence.row = queues.rows.take()
    queues.release_row(sequence)
    queues.release_row(sequence)
    assert queues.rows.pop_released() == (1,) and queues.rows.num_free == 6


def test_a_finished_group_leaves(queues):
    add(queues, 1, FINISHED)
    assert queues.check_integrity() == []


def test_an_illegal_move_changes_nothing(queues):
    group = add(queues, 1)
    with pytest.raises(ValueError, match="from waiting to paused"):
        queues.move(group, PAUSED)
    assert group.status is WAITING
    assert queues.check_integrity() == [group]


# --- Integrity --------------------------------------------------------------------------------------------------


def change_state(queues, group):
    group.status = PAUSED


def queue_twice(queues, group):
    queues.running.append(group)


def reuse_an_id(queues, group):
    other = add(queues, 2)
    other.id = group.id


def change_key(queues, group):
    add(queues, 2, RUNNING)
    group.sort_key = (3.0, 3)


def take_a_seat(queues, group):
    queues.num_seats += 1


def take_a_row(queues, group):
    queues.rows.take()


def wait_with_a_row(queues, group):
    add(queues, 2).open[0].row = 6


@pytest.mark.parametrize(
    "breaking, message",
    [
        (change_state, "is in the queue of"),
        (queue_twice, "out of order"),
        (reuse_an_id, "two groups have one id"),
        (change_key, "out of order"),
        (take_a_seat, "seats are miscounted"),
        (take_a_row, "a row is lost"),
        (wait_with_a_row, "a row without running"),
    ],
)
def test_integrity_detects(queues, breaking, message):
    group = add(queues, 1, RUNNING)
    breaking(queues, group)
    with pytest.raises(AssertionError, match=message):
        queues.check_integrity()


def test_integrity_detects_a_group_in_two_queues(queues):
    group = add(queues, 1, RUNNING)
    queues.returning.append(group)
    with pytest.raises(AssertionError, match="is in the queue of"):
        queues.check_integrity()


# --- State rows -------------------------------------------------------------------------------------------------------


def test_rows_start_at_1_and_the_lowest_is_taken_first():
    rows = RowPool(3)
    assert [rows.take() for _ in range(3)] == [1, 2, 3]
    assert rows.num_free == 0


def test_released_rows_are_reported_once():
    rows = RowPool(3)
    taken = [rows.take(), rows.take()]
    rows.release(taken[1])
    rows.release(taken[0])
    assert rows.pop_released() == (2, 1)
    assert rows.pop_released() == ()
    assert rows.num_free == 3


def test_integrity_detects_a_lost_row():
    rows = RowPool(2)
    row = rows.take()
    rows.check_integrity([row])
    with pytest.raises(AssertionError, match="lost or doubled"):
        rows.check_integrity([])


def test_each_reader_of_changes_gets_those_since_it_began(queues):
    first = queues.report_changes()
    one = add(queues, 1, RUNNING)
    second = queues.report_changes()
    assert first == {one: None} and second == {}
    first.clear()
    two = add(queues, 2)
    queues.move(one, FINISHED)
    assert first == second == {two: None, one: None}
    queues.stop_reporting(second)
    add(queues, 3)
    assert len(first) == 3 and len(second) == 2
    queues.stop_reporting(first)
    assert not queues._changed
