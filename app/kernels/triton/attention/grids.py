"""How many programs attention gets: arithmetic of the host, from a step's rows and its contexts.

A captured step cannot change its grids, so these numbers are part of a step's shape. Any of them gives right results:
what is chosen here decides only how evenly the work is spread, and how many programs find nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.kernels.triton.attention.attention_configs import AttentionConfig

# Up to here a context is one program's work where there are rows enough for all processors.
WHOLE_TOKENS = 2048
# Programs for each processor from which on there are enough. Longer contexts are split all the same, so that one that
# is far longer than the others holds up the step less.
ENOUGH_PROGRAMS = 4
MIN_SPLITS, MAX_SPLITS = 4, 32
# Programs for each processor that one long context may have: more splits than MAX_SPLITS where key heads are few.
PROGRAMS_OF_ONE = 2
# Of deterministic attention: splits that are computed side by side. Longer contexts are as right, and slower; the
# scratch grows with rows times splits.
DETERMINISTIC_MIN_SPLITS, DETERMINISTIC_MAX_SPLITS = 8, 64
SPLITS_PER_PROCESSOR = 16
# Warps that a processor holds of the split kernels, whose registers leave room for no more.
WARPS_PER_PROCESSOR = 12


@dataclass(frozen=True, slots=True)
class AttentionGrids:
    """The grids of attention on a GPU of `num_processors`, for query heads in groups and tiles of these configs.

    `split_tokens` is the fixed size of splits in deterministic attention, None in any other.
    """

    group: int
    num_kv_heads: int
    num_processors: int
    decode: AttentionConfig
    pieces: AttentionConfig
    prefill: AttentionConfig
    split_tokens: int | None = None

    @property
    def tile_tokens(self) -> int:
        """Tokens of a chunk that a program of prefill attention takes."""
        return self.prefill.block_m // self.group

    @property
    def mixed_programs(self) -> tuple[int, int]:
        """Programs of each key head that share out a mixed step's pieces: for few pieces, and a GPU full of them."""
        per_processor = max(1, WARPS_PER_PROCESSOR // self.pieces.num_warps)
        many = max(1, self.num_processors * per_processor // self.num_kv_heads)
        return max(1, many // 3), many

    def tile_programs(self, num_rows: int) -> int:
        """Return the programs of each key head that share out the tiles of a mixed step."""
        return max(1, num_rows // self.tile_tokens)

    def is_full(self, num_rows: int) -> bool:
        """Return whether unsplit rows of a decode step give every processor enough programs."""
        return num_rows * self.num_kv_heads >= ENOUGH_PROGRAMS * self.num_processors

    def decode_splits(self, num_rows: int, longest: int) -> int:
        """Return into how many splits the contexts of a decode step are cut at most, a power of two.

        `longest` is the number of tokens that the longest of its rows sees.
        """
        if self.split_tokens is not None:
            return self._deterministic_splits(num_rows, longest)
        wanted = _power_from(-(-ENOUGH_PROGRAMS * self.num_processors // (num_rows * self.num_kv_heads)))
        most = _power_from(PROGRAMS_OF_ONE * self.num_processors // self.num_kv_heads + 1) // 2
        return min(max(wanted, 1 if longest <= WHOLE_TOKENS else MIN_SPLITS), max(MAX_SPLITS, most))

    def least_split(self, num_rows: int, num_splits: int) -> int:
        """Return the tokens below which a decode step's context is not cut further; fixed splits ignore it."""
        tokens = WHOLE_TOKENS if self.is_full(num_rows) else WHOLE_TOKENS // num_splits
        return -(-tokens // self.decode.block_n) * self.decode.block_n

    def all_decode_splits(self, num_rows: int, max_context: int) -> list[int]:
        """Return every number of splits that decode steps of so many rows have, with contexts up to `max_context`."""
        contexts = [WHOLE_TOKENS]
        while contexts[-1] < max_context:
            contexts.append(2 * contexts[-1])
        return sorted({self.decode_splits(num_rows, context) for context in contexts})

    def _deterministic_splits(self, num_rows: int, longest: int) -> int:
        """Return the splits that the longest context has, but where one program per row keeps the GPU busy: 1."""
        assert self.split_tokens is not None
        if longest <= WHOLE_TOKENS and self.is_full(num_rows):
            return 1
        most = _power_from(SPLITS_PER_PROCESSOR * self.num_processors // num_rows + 1) // 2
        most = max(DETERMINISTIC_MIN_SPLITS, min(DETERMINISTIC_MAX_SPLITS, most))
        return min(max(_power_from(-(-longest // self.split_tokens)), MIN_SPLITS), most)


def _power_from(number: int) -> int:
    """Return the least power of two from a number on."""
    return 1 << max(0, number - 1).bit_length()
