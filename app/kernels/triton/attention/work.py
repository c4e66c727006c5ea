"""What attention has to do in a mixed step, as lists that the host makes and the kernels go through.

A mixed step holds rows that decode, short chunks (ends of prompts behind a cached prefix, drafts) and prompts. The host
knows all of them, so no program has to find out that there is nothing for it:

- Pieces: parts of the contexts of few rows, for `piece_attention`. Contexts are cut so that the pieces are about as
  long as each program's share of all of them, a short one not at all.
- Tiles: rows of longer chunks, each with its whole context, for `prefill_attention`.

Program i of P takes entries i, i + P, and so on. They are dealt longest first, and every second round backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.kernels.triton.attention.grids import AttentionGrids

Integers = npt.NDArray[np.int32]

# The first numbers of the work: how many pieces and tiles follow.
NUM_PIECES, NUM_TILES = 0, 1
HEADER = 32
# A piece's numbers: its rows, the tokens that it goes through, where its partial sums are and how many others there
# are, and which of them it is.
PIECE_WIDTH = 8
FIRST_ROW, NUM_ROWS, BEGIN, END, FIRST_SLOT, NUM_SPLITS, SPLIT = range(7)
# A tile's numbers: its first row, and where its chunk ends.
TILE_WIDTH = 2
# Query rows (tokens times heads of a group) up to which a chunk goes in pieces: behind a long prefix its few tiles
# would keep a few processors busy and the others idle.
SHORT_ROWS = 64
# Pieces are not shorter, or merging them would cost more than it spreads.
MIN_PIECE_TOKENS = 256
# Splits of all pieces together, for each program; fixed splits are many.
SLOTS_PER_PROGRAM, FIXED_SLOTS_PER_PROGRAM = 2, 8


class Sizes(NamedTuple):
    """The most pieces and tiles of a step, and partial sums of pieces."""

    pieces: int
    tiles: int
    slots: int

    @property
    def length(self) -> int:
        """Numbers that the work takes."""
        return HEADER + self.pieces * PIECE_WIDTH + self.tiles * TILE_WIDTH

    @property
    def first_tile(self) -> int:
        """Where the tiles begin."""
        return HEADER + self.pieces * PIECE_WIDTH


class _Items(NamedTuple):
    """Rows that share a program, and the tokens that the last of them sees."""

    first_rows: Integers
    num_rows: Integers
    contexts: Integers


class Work(NamedTuple):
    """A mixed step's lists, and among how many programs of each key head the pieces are dealt."""

    pieces_PX: Integers
    tiles_TX: Integers
    num_programs: int

    def numbers(self, sizes: Sizes) -> list[tuple[int, Integers]]:
        """Return the work as runs of numbers, and where each begins."""
        counts = np.array([len(self.pieces_PX), len(self.tiles_TX)], np.int32)
        runs = ((0, counts), (HEADER, self.pieces_PX.reshape(-1)), (sizes.first_tile, self.tiles_TX.reshape(-1)))
        return [(begin, run) for begin, run in runs if len(run)]


@dataclass(frozen=True, slots=True)
class MixedWork:
    """Makes the lists of steps of at most `max_rows` rows of `max_chunks` sequences. Engine thread only."""

    grids: AttentionGrids
    max_chunks: int
    max_rows: int

    @property
    def sizes(self) -> Sizes:
        """How long the lists may become."""
        grids = self.grids
        many = grids.mixed_programs[-1]
        slots = many * (SLOTS_PER_PROGRAM if grids.split_tokens is None else FIXED_SLOTS_PER_PROGRAM)
        per_chunk = -(-(SHORT_ROWS // grids.group) // self._piece_rows)
        items = min(self.max_rows, self.max_chunks * per_chunk)
        return Sizes(items + slots, self.max_rows // grids.tile_tokens + self.max_chunks, slots)

    def of(self, tokens_before: Sequence[int], num_new: Sequence[int], num_rows: int) -> Work:
        """Return the work over chunks of so many new tokens, each behind so many others of its sequence.

        `num_rows` are the step's, padding included: they decide among how many programs the tiles are dealt.
        """
        starts, counts = np.array(tokens_before, np.int32), np.array(num_new, np.int32)
        firsts = np.cumsum(counts, dtype=np.int32) - counts
        is_short = counts * self.grids.group <= SHORT_ROWS
        items = _cut(firsts[is_short], counts[is_short], starts[is_short], self._piece_rows)
        num_programs = self._num_programs(items.contexts)
        pieces_PX = self._pieces(items, num_programs)
        long = _cut(firsts[~is_short], counts[~is_short], starts[~is_short], self.grids.tile_tokens)
        ends = np.repeat((firsts + counts)[~is_short], -(-counts[~is_short] // self.grids.tile_tokens))
        order = _deal(long.contexts, self.grids.tile_programs(num_rows))
        tiles_TX = np.stack([long.first_rows, ends], axis=1)[order]
        return Work(pieces_PX, tiles_TX, num_programs)

    @property
    def _piece_rows(self) -> int:
        return max(1, self.grids.pieces.block_m // self.grids.group)

    def _num_programs(self, contexts: Integers) -> int:
        few, many = self.grids.mixed_programs
        return few if int((-(-contexts // MIN_PIECE_TOKENS)).sum()) <= few else many

    def _pieces(self, items: _Items, num_programs: int) -> Integers:
        """Cut the contexts of items, number the partial sums of those that were cut, and deal the pieces."""
        contexts, fixed, block = items.contexts, self.grids.split_tokens, self.grids.pieces.block_n
        share = max(MIN_PIECE_TOKENS, -(-int(contexts.sum()) // num_programs))
        if fixed is None:
            size = -(-share // block) * block
            splits = -(-contexts // size)
        else:  # those that are cut get as many splits as there is room for; the rest is gone through by one program
            size, is_cut = fixed, contexts > max(share, fixed)
            most = max(1, self.sizes.slots // max(1, int(is_cut.sum())))
            splits = np.where(is_cut, np.minimum(-(-contexts // fixed), most), 1).astype(np.int32)
        slots = np.where(splits > 1, splits, 0)
        pieces_PX = np.zeros((int(splits.sum()), PIECE_WIDTH), np.int32)
        numbers = np.arange(len(pieces_PX)) - np.repeat(np.cumsum(splits) - splits, splits)
        pieces_PX[:, FIRST_ROW] = np.repeat(items.first_rows, splits)
        pieces_PX[:, NUM_ROWS] = np.repeat(items.num_rows, splits)
        pieces_PX[:, BEGIN] = numbers * size
        ends = np.repeat(contexts, splits)
        is_whole = np.repeat(splits == 1, splits)
        pieces_PX[:, END] = np.where(is_whole, ends, np.minimum(ends, (numbers + 1) * size))
        pieces_PX[:, FIRST_SLOT] = np.repeat(np.cumsum(slots) - slots, splits)
        pieces_PX[:, NUM_SPLITS] = np.repeat(splits, splits)
        pieces_PX[:, SPLIT] = numbers
        # The same tokens of several items of one chunk lie side by side: one of them finds them in the L2 cache.
        pieces_PX = pieces_PX[np.argsort(pieces_PX[:, BEGIN], kind="stable")]
        return pieces_PX[_deal(pieces_PX[:, END] - pieces_PX[:, BEGIN], num_programs)]


def _cut(firsts: Integers, counts: Integers, starts: Integers, most: int) -> _Items:
    """Cut chunks into items of at most so many rows."""
    parts = -(-counts // most)
    offsets = (np.arange(int(parts.sum()), dtype=np.int32) - np.repeat(np.cumsum(parts) - parts, parts)) * most
    num_rows = np.minimum(np.repeat(counts, parts) - offsets, most).astype(np.int32)
    contexts = (np.repeat(starts, parts) + offsets + num_rows).astype(np.int32)
    return _Items((np.repeat(firsts, parts) + offsets).astype(np.int32), num_rows, contexts)


def _deal(lengths: Integers, num_programs: int) -> npt.NDArray[np.int64]:
    """Return the order in which programs that take every `num_programs`th entry get about as much each.

    The last program gets the longest entry of the first round: a kernel whose programs do not all fit the GPU at once
    starts with the last one.
    """
    order = np.argsort(-lengths, kind="stable")
    rounds = [order[begin : begin + num_programs] for begin in range(0, len(order), num_programs)]
    return np.concatenate([part if number % 2 else part[::-1] for number, part in enumerate(rounds)] or [order])
