"""The lists of a mixed step hold every row's whole context once, in any step, and never more than there is room for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernels.triton.attention import work as layout
from app.kernels.triton.attention.attention_configs import AttentionConfig
from app.kernels.triton.attention.grids import AttentionGrids
from app.kernels.triton.attention.work import MixedWork, Work

MAX_CHUNKS, MAX_ROWS = 40, 512
SMALL, LARGE = AttentionConfig(16, 64, 4, 3), AttentionConfig(128, 128, 8, 3)
FIXED = AttentionConfig(64, 64, 8, 3)
WORKS = {
    "eight heads in groups of four": MixedWork(AttentionGrids(4, 8, 132, SMALL, SMALL, LARGE), MAX_CHUNKS, MAX_ROWS),
    "one head in groups of sixteen": MixedWork(AttentionGrids(16, 1, 132, SMALL, SMALL, LARGE), MAX_CHUNKS, MAX_ROWS),
    "three heads": MixedWork(AttentionGrids(1, 3, 40, SMALL, SMALL, LARGE), MAX_CHUNKS, MAX_ROWS),
    "deterministic": MixedWork(AttentionGrids(4, 8, 132, FIXED, FIXED, FIXED, 512), MAX_CHUNKS, MAX_ROWS),
    "deterministic, few programs": MixedWork(AttentionGrids(3, 8, 4, FIXED, FIXED, FIXED, 512), MAX_CHUNKS, MAX_ROWS),
}


@st.composite
def chunks(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens before each chunk, and in it."""
    counts = draw(st.lists(st.one_of(st.just(1), st.integers(1, 20), st.integers(1, 200)), max_size=MAX_CHUNKS))
    while sum(counts) > MAX_ROWS:
        counts.pop()
    starts = [draw(st.one_of(st.integers(0, 300), st.integers(0, 131_000))) for _ in counts]
    return starts, counts


def by_row(made: Work) -> dict[int, np.ndarray]:
    """The pieces of each first row, in the order of their splits."""
    order = np.lexsort((made.pieces_PX[:, layout.SPLIT], made.pieces_PX[:, layout.FIRST_ROW]))
    pieces = made.pieces_PX[order]
    return {int(row): pieces[pieces[:, layout.FIRST_ROW] == row] for row in np.unique(pieces[:, layout.FIRST_ROW])}


@pytest.mark.parametrize("name", WORKS)
@given(given_chunks=chunks())
def test_every_row_has_one_place_and_every_context_is_whole(name, given_chunks):
    work, (starts, counts) = WORKS[name], given_chunks
    grids, made = work.grids, work.of(starts, counts, MAX_ROWS)
    firsts, contexts = np.cumsum(counts) - counts, {}
    for first, start, count in zip(firsts, starts, counts, strict=True):
        contexts |= {int(first) + i: start + i + 1 for i in range(count)}
    rows = []
    for first, pieces in by_row(made).items():
        num_rows, splits = int(pieces[0, layout.NUM_ROWS]), int(pieces[0, layout.NUM_SPLITS])
        rows += range(first, first + num_rows)
        assert num_rows * grids.group <= grids.pieces.block_m and pieces[:, layout.SPLIT].tolist() == list(
            range(splits)
        )
        begins, ends = pieces[:, layout.BEGIN], pieces[:, layout.END]
        assert begins[0] == 0 and (begins[1:] == ends[:-1]).all() and (ends > begins).all()
        seen = contexts[first + num_rows - 1]
        if grids.split_tokens is None or splits == 1:
            assert ends[-1] == seen
        else:  # behind the last one the program that merges goes on
            assert (ends - begins)[:-1].tolist() == [grids.split_tokens] * (splits - 1) and ends[-1] <= seen
            assert ends[-1] in (seen, splits * grids.split_tokens)
    for first, end in made.tiles_TX.tolist():
        rows += range(first, min(first + grids.tile_tokens, end))
        assert end in np.cumsum(counts)
    assert sorted(rows) == sorted(contexts)


@pytest.mark.parametrize("name", WORKS)
@given(given_chunks=chunks())
def test_there_is_room_for_every_list_and_a_slot_for_every_piece_that_is_cut(name, given_chunks):
    work = WORKS[name]
    made, sizes = work.of(*given_chunks, MAX_ROWS), work.sizes
    assert len(made.pieces_PX) <= sizes.pieces and len(made.tiles_TX) <= sizes.tiles
    assert made.num_programs in work.grids.mixed_programs
    cut = made.pieces_PX[made.pieces_PX[:, layout.NUM_SPLITS] > 1]
    slots = sorted(cut[:, layout.FIRST_SLOT] + cut[:, layout.SPLIT])
    assert slots == list(range(len(cut))) and len(cut) <= sizes.slots


def test_programs_get_about_as_much_each_longest_first():
    made = WORKS["eight heads in groups of four"].of(range(100, 2100, 50), [1] * 40, 64)
    lengths = made.pieces_PX[:, layout.END] - made.pieces_PX[:, layout.BEGIN]
    loads = [int(lengths[program :: made.num_programs].sum()) for program in range(made.num_programs)]
    assert max(loads) < 1.4 * sum(loads) / len(loads)
    assert lengths[made.num_programs - 1] == lengths.max()


def test_short_chunks_go_in_pieces_and_long_ones_in_tiles():
    made = WORKS["eight heads in groups of four"].of([0, 30_000, 0], [1, 16, 17], 64)
    assert set(made.pieces_PX[:, layout.FIRST_ROW]) == {0, 1, 5, 9, 13} and made.tiles_TX.tolist() == [[17, 34]]
