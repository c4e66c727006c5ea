"""The state and the owner of each block, from references, findable blocks, fences, pins and tables."""

from app.contract.engine_picture import CopyRecord
from app.contract.live_state import COPIED, CellState
from app.streaming.live.picture_blocks import (
    OWNER_BITS,
    PictureBlocks,
    num_blocks_of,
    num_host_blocks_of,
    shown_tables,
)
from tests.streaming.live.pictures import group, picture, table

TWO = group("b", [table([3, 4]), table([3, 5], choice=1)])


def states(blocks: PictureBlocks) -> list[CellState]:
    return [CellState(int(cell)) for cell in blocks.cells([], [], marks_unowned=True)]


def test_a_block_has_the_state_that_the_books_say():
    made = picture(groups=[group("a", [table([1, 2])]), TWO], num_blocks=10, cached=[6], fenced=[7, 6], pinned=[8])
    blocks = PictureBlocks(made)
    assert [state.name for state in states(blocks)] == [
        "USED", "USED", "SHARED", "USED", "USED", "FENCED", "FENCED", "PINNED", "FREE", "FREE",
    ]  # fmt: skip
    counts = blocks.counts
    assert (counts.free, counts.cached, counts.used, counts.shared, counts.pinned, counts.fenced) == (2, 0, 4, 1, 1, 2)


def test_a_fenced_block_that_is_found_again_is_in_use():
    assert (
        states(PictureBlocks(picture(groups=[group("a", [table([1])])], num_blocks=1, fenced=[1])))[0] == CellState.USED
    )


def test_blocks_have_the_numbers_of_their_owners():
    blocks = PictureBlocks(picture(groups=[TWO], num_blocks=6))
    cells = blocks.cells([(300, TWO)], [], marks_unowned=False)
    assert [int(cell) >> OWNER_BITS for cell in cells] == [0, 0, 300, 300, 300, 0]


def test_copies_are_marked_if_their_owner_is_shown():
    blocks = PictureBlocks(picture(groups=[TWO], num_blocks=6))
    copies = [CopyRecord(1.0, 4, 5), CopyRecord(1.0, 1, 2)]
    marked = [
        [bool(int(cell) & COPIED) for cell in blocks.cells([(1, TWO)], copies, marks_unowned=every)]
        for every in (False, True)
    ]
    assert marked == [[False] * 4 + [True, False], [False, True, False, False, True, False]]


def test_tables_are_runs_of_ids_in_their_order():
    tables = shown_tables(group("a", [table([7, 8, 9, 2, 3, 11]), table([], choice=1), table([5, 4], choice=2)]))
    assert [one.runs for one in tables] == [[7, 3, 2, 2, 11, 1], [], [5, 1, 4, 1]]


def test_blocks_of_a_group_are_counted_once():
    assert num_blocks_of(TWO) == 3 and num_blocks_of(group("a", [])) == 0
    assert num_host_blocks_of(group("a", [table([], host=[1, 2]), table([], host=[2])])) == 2
