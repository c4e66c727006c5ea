"""One message of quire.live.v1 as bytes: whole, or as a difference to the message before (docs/reference/live.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.contract.live_state import HEADER, MessageKind
from app.streaming.live.picture_blocks import OWNER_BITS, Cells

_SHIFTS = np.arange(0, 35, 7)  # of the bytes of a varint: five, for numbers below 2 ** 35
_BYTE = (1 << OWNER_BITS) - 1


class LiveMessage:
    """One message of a view, for all its watchers. Methods of one thread at a time, attributes of any.

    Attributes:
        number: the number of the message, from 1.
        cells: the blocks.
        difference: the message for who has the one before; None for the first.
        made_whole: the message for all others, once somebody has needed it.
    """

    def __init__(self, number: int, state: bytes, cells: Cells, before: Cells | None) -> None:
        self.number = number
        self.cells = cells
        self._state = state
        self.difference = None if before is None else self._bytes(MessageKind.DIFFERENCE, _changes(before, cells))
        self.made_whole: bytes | None = None

    def whole(self) -> bytes:
        """Return the whole message; the first call makes it."""
        if self.made_whole is None:
            self.made_whole = self._bytes(MessageKind.WHOLE, _runs(self.cells))
        return self.made_whole

    def _bytes(self, kind: MessageKind, blocks: bytes) -> bytes:
        return HEADER.pack(kind, self.number, len(self._state)) + self._state + blocks


def _runs(cells: Cells) -> bytes:
    """Return equal neighbours as runs: count, byte, owner."""
    ends = np.append(np.flatnonzero(np.diff(cells)), len(cells) - 1)
    return _rows(np.diff(ends, prepend=-1), cells[ends])


def _changes(before: Cells, cells: Cells) -> bytes:
    """Return the changed blocks: distance from the one before (at first from 0), byte, owner."""
    changed = np.flatnonzero(before != cells)
    return _rows(np.diff(changed, prepend=-1), cells[changed])


def _rows(distances: NDArray[np.int64], cells: Cells) -> bytes:
    columns = (
        _varints(distances),
        (cells[:, None] & _BYTE, np.ones((len(cells), 1), bool)),
        _varints(cells >> OWNER_BITS),
    )
    numbers, is_used = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    return bytes(numbers[is_used].astype(np.uint8))


def _varints(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the bytes of numbers in LEB128, a row for each, and which of them are used."""
    rests = values[:, None] >> _SHIFTS
    is_used = rests > 0
    is_used[:, 0] = True
    goes_on = np.zeros_like(is_used)
    goes_on[:, :-1] = is_used[:, 1:]
    return rests & 0x7F | goes_on * 0x80, is_used
