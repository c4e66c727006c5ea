"""The blocks of a picture as arrays of cells: state, whether just copied, and owner, of each block in one number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from app.contract.engine_picture import CopyRecord, EnginePicture, PictureGroup
from app.contract.live_state import COPIED, CellState, LiveBlocks, LiveTable

OWNER_BITS = 8
"""A cell is the byte of the wire, and above these bits the number of the owner."""
Cells = NDArray[np.int64]
_FIRST_ID = 1  # of a block, whose cell has the index 0


class PictureBlocks:
    """The blocks of one picture, whoever looks at them; made once. Any thread."""

    def __init__(self, picture: EnginePicture) -> None:
        self.picture = picture
        references = np.frombuffer(picture.references, np.uint16)[_FIRST_ID:]
        is_findable = np.frombuffer(picture.findable, np.uint8)[_FIRST_ID:] != 0
        free = np.where(is_findable, CellState.CACHED, CellState.FREE)
        held = np.where(references > 1, CellState.SHARED, CellState.USED)
        self._states = np.where(references > 0, held, free).astype(np.int64)
        self._states[_indices(picture.pinned)] = CellState.PINNED
        fenced = _indices(picture.fenced)
        self._states[fenced[references[fenced] == 0]] = CellState.FENCED
        self.counts = LiveBlocks(*np.bincount(self._states, minlength=len(CellState)).tolist())

    def cells(
        self, owners: Iterable[tuple[int, PictureGroup]], copies: Sequence[CopyRecord], *, marks_unowned: bool
    ) -> Cells:
        """Return the cells of blocks 1, 2, ... with the numbers of their owners; the last one of a shared block counts.

        Blocks that are targets of `copies` are marked: those with an owner, or with `marks_unowned` every one.
        """
        owned = np.zeros_like(self._states)
        for number, group in owners:
            for table in group.tables:
                owned[_indices(table.block_ids)] = number
        cells = self._states | owned << OWNER_BITS
        targets = np.fromiter((copy.target - _FIRST_ID for copy in copies), np.int64, len(copies))
        cells[targets if marks_unowned else targets[owned[targets] > 0]] |= COPIED
        return cells


def num_blocks_of(group: PictureGroup) -> int:
    """Return how many different blocks of the device a group holds."""
    return len(np.unique(np.concatenate([np.zeros(0, np.int64), *(_indices(each.block_ids) for each in group.tables)])))


def num_host_blocks_of(group: PictureGroup) -> int:
    """Return how many different blocks of host memory a group holds."""
    ids = [np.frombuffer(table.host_block_ids, np.uint32) for table in group.tables]
    return len(np.unique(np.concatenate([np.zeros(0, np.uint32), *ids])))


def shown_tables(group: PictureGroup) -> list[LiveTable]:
    """Return the tables of a group, their block ids as runs."""
    return [LiveTable(table.choice, table.num_tokens, _runs(table.block_ids)) for table in group.tables]


def _runs(block_ids: bytes) -> list[int]:
    """Return ids as runs: first, count, first, count, ..."""
    ids = np.frombuffer(block_ids, np.uint32).astype(np.int64)
    if not len(ids):
        return []
    begins = np.flatnonzero(np.diff(ids, prepend=ids[0] - 2) != 1)
    counts = np.diff(begins, append=len(ids))
    runs: list[int] = np.column_stack((ids[begins], counts)).ravel().tolist()
    return runs


def _indices(block_ids: bytes) -> NDArray[np.int64]:
    return np.frombuffer(block_ids, np.uint32).astype(np.int64) - _FIRST_ID
