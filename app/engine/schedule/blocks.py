"""The block pool: which blocks of the KV cache are free, referenced or fenced.

Block ids are 1..num_blocks; block 0 is reserved for padding and never handed out. A block is in exactly one state:

    free --allocate--> referenced --last release--> fenced --steps done--> free
                                        \\--------- no step in flight ------/

A released block that a step in flight may still touch is fenced: it counts as soon free, nobody gets it yet, and it
becomes free when that step is done. Steps are done in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BlockPool:
    """Hands out blocks and takes them back; O(1) per block. Engine thread only."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_fenced = 0
        self.last_done_step = 0
        self._free = list(range(num_blocks, 0, -1))  # a stack: what was used last is still in the CPU's caches
        self._num_references = [0] * (num_blocks + 1)
        self._last_step = [0] * (num_blocks + 1)
        self._fenced: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_soon_free(self) -> int:
        """Blocks that are free, or will be without anybody giving up another one."""
        return len(self._free) + self.num_fenced

    def can_allocate(self, count: int) -> bool:
        """Whether `count` blocks are free now."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Return `count` free blocks, each with one reference.

        Raises:
            ValueError: there are fewer (ask `can_allocate`); nothing was changed.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        first = len(self._free) - count
        block_ids = self._free[first:]
        del self._free[first:]
        block_ids.reverse()
        for block_id in block_ids:
            self._num_references[block_id] = 1
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """Add one reference to each of `block_ids`.

        Raises:
            ValueError: one of them is not referenced; nothing was changed.
        """
        self._check_referenced(block_ids)
        for block_id in block_ids:
            self._num_references[block_id] += 1

    def release(self, block_ids: Sequence[int], last_step: int) -> None:
        """Drop one reference to each of `block_ids`, which the holder used in no step after `last_step`.

        Raises:
            ValueError: one of them is not referenced (freed twice); nothing was changed.
        """
        self._check_referenced(block_ids)
        for block_id in block_ids:
            last = self._last_step[block_id] = max(self._last_step[block_id], last_step)
            self._num_references[block_id] -= 1
            if self._num_references[block_id]:
                continue
            if last > self.last_done_step:
                self._fenced.setdefault(last, []).append(block_id)
                self.num_fenced += 1
            else:
                self._free.append(block_id)

    def finish_step(self, step: int) -> None:
        """Free what was fenced for `step`: it and all steps before it are done."""
        self.last_done_step = step
        block_ids = self._fenced.pop(step, None)
        if block_ids:
            self.num_fenced -= len(block_ids)
            self._free.extend(block_ids)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare the books with `tables`, the block tables of all that hold blocks.

        Raises:
            AssertionError: a block is in no state or in two, or its references are miscounted.
        """
        expected = [0] * (self.num_blocks + 1)
        for table in tables:
            for block_id in table:
                expected[block_id] += 1
        assert self._num_references == expected, "reference counts differ from the block tables"
        fenced = [block_id for block_ids in self._fenced.values() for block_id in block_ids]
        used = [block_id for block_id, count in enumerate(expected) if count]
        assert sorted(self._free + fenced + used) == list(range(1, self.num_blocks + 1)), "a block is lost or doubled"
        assert len(fenced) == self.num_fenced, "fenced blocks are miscounted"
        assert all(step > self.last_done_step for step in self._fenced), "a fence was not lifted"

    def _check_referenced(self, block_ids: Sequence[int]) -> None:
        if len(set(block_ids)) != len(block_ids) or not all(self._num_references[block_id] for block_id in block_ids):
            raise ValueError(f"blocks {list(block_ids)}: one is not in use, or named twice")
