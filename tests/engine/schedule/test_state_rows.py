"""State rows."""

import pytest

from app.engine.schedule.state_rows import RowPool


def test_rows_start_at_1_and_the_lowest_goes_first():
    rows = RowPool(3)
    assert [rows.take() for _ in range(3)] == [1, 2, 3]
    assert rows.num_free == 0


def test_released_rows_are_told_once():
    rows = RowPool(3)
    taken = [rows.take(), rows.take()]
    rows.release(taken[1])
    rows.release(taken[0])
    assert rows.pop_released() == (2, 1)
    assert rows.pop_released() == ()
    assert rows.num_free == 3


def test_integrity_notices_a_lost_row():
    rows = RowPool(2)
    row = rows.take()
    rows.check_integrity([row])
    with pytest.raises(AssertionError, match="lost or doubled"):
        rows.check_integrity([])
