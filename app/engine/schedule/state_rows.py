"""State rows: the device's state of each running sequence. Row 0 is reserved for padding."""

from __future__ import annotations


class RowPool:
    """Rows 1..num_rows; remembers which were released since the last plan. O(1). Engine thread only."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows, 0, -1))
        self._released: list[int] = []

    @property
    def num_free(self) -> int:
        """Rows that no sequence has."""
        return len(self._free)

    def take(self) -> int:
        """Return a free row: the one released last, at first the lowest."""
        return self._free.pop()

    def release(self, row: int) -> None:
        """Give `row` back."""
        self._free.append(row)
        self._released.append(row)

    def pop_released(self) -> tuple[int, ...]:
        """Return the rows released since the last call."""
        if not self._released:
            return ()
        released = tuple(self._released)
        self._released.clear()
        return released

    def check_integrity(self, taken: list[int]) -> None:
        """Compare the free rows with `taken`, the rows that sequences have.

        Raises:
            AssertionError: a row is lost or doubled.
        """
        assert sorted(self._free + taken) == list(range(1, self.num_rows + 1)), "a row is lost or doubled"
