"""The block pool: which blocks of the KV cache are free, cached, referenced or fenced.

Block ids are 1..num_blocks; block 0 is reserved for padding and never handed out. A block is in exactly one state:

    free        no references, and its content cannot be found
    cached      no references, and its content can be found: shared again, or evicted (least recently used first)
    referenced  as often as block tables (and pins) name it
    fenced      released, but a step that is not done may still touch it: not allocated before that, but soon free

    free, cached --allocate--> referenced --last release--> fenced --its step is done--> cached if findable, else free
    cached, fenced (findable) --share--> referenced       \\------ no step in flight touches it -----/

`keep` and `forget` set whether a block is findable; that mark outlives the state, only eviction and `forget` clear it.
The tail of a table becomes cached before its head, so the tail is evicted first: a prefix is useful without the blocks
after it, but not the reverse. Steps are done in the order of their numbers. Unreferenced blocks are fenced exactly
while `_last_step` is not done: no other field marks them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

MAX_REFERENCES = 0xFFFF


class PoolSnapshot(NamedTuple):
    """A copy of the books of a pool, as in an `EnginePicture`: bytes of arrays, the first two by block id."""

    references: bytes
    findable: bytes
    fenced: bytes


class BlockPool:
    """Hands out blocks and takes them back; O(1) per block. Engine thread only."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_fenced = 0
        self.num_allocated = 0  # a counter, never reset
        self.last_done_step = 0
        # Called with a cached block just before it is allocated again; it must not call the pool's other methods but
        # `forget`. Set by the prefix cache or, with --swap-space, by the block tables.
        self.on_evict: Callable[[int], None] | None = None
        self._free = list(range(num_blocks, 0, -1))  # a stack: what was used last is still in the CPU's caches
        self._cached: OrderedDict[int, None] = OrderedDict()  # the oldest first
        self._fenced: dict[int, dict[int, None]] = {}  # by step; a dict is an ordered set
        self._num_references = [0] * (num_blocks + 1)
        self._last_step = [0] * (num_blocks + 1)
        self._findable = [False] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks without references whose content can be found."""
        return len(self._cached)

    @property
    def cached_blocks(self) -> list[int]:
        """Blocks without references whose content can be found, the least recently used first. O(blocks)."""
        return list(self._cached)

    @property
    def num_soon_free(self) -> int:
        """Blocks that can be allocated now, or once the steps in flight are done, without a preemption."""
        return len(self._free) + len(self._cached) + self.num_fenced

    def num_references(self, block_id: int) -> int:
        """Return how many tables and pins name `block_id`."""
        return self._num_references[block_id]

    def is_findable(self, block_id: int) -> bool:
        """Return whether `block_id` was kept, and neither evicted nor forgotten since."""
        return self._findable[block_id]

    def can_allocate(self, count: int) -> bool:
        """Return whether `count` blocks can be handed out now."""
        return count <= len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Return `count` blocks, each with one reference: free ones first, then the least recently used cached ones.

        Raises:
            ValueError: there are fewer (see `can_allocate`); nothing was changed.
        """
        if count > len(self._free) + len(self._cached):
            raise ValueError(f"{count} blocks asked for, {self.num_free} are free")
        free = self._free
        block_ids = [free.pop() for _ in range(min(count, len(free)))]
        for block_id in block_ids:
            self._num_references[block_id] = 1
        while len(block_ids) < count:
            block_ids.append(self._evict())
        self.num_allocated += count
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """Add one reference to each of `block_ids`, which are referenced or findable (cached or fenced).

        Raises:
            ValueError: one is neither referenced nor findable, or named twice; nothing was changed.
        """
        references, findable = self._num_references, self._findable
        if len(set(block_ids)) != len(block_ids) or not all(references[i] or findable[i] for i in block_ids):
            raise ValueError(f"blocks {list(block_ids)}: one is not in use and not findable, or named twice")
        for block_id in block_ids:
            if not references[block_id]:
                self._revive(block_id)
            references[block_id] += 1

    def release(self, block_ids: Sequence[int], last_step: int) -> None:
        """Drop one reference to each of `block_ids`, which their holder used in no step after `last_step`.

        Raises:
            ValueError: one of them is not referenced (freed twice), or named twice; nothing was changed.
        """
        self._check_referenced(block_ids)
        references = self._num_references
        for block_id in reversed(block_ids):
            if last_step > self._last_step[block_id]:
                self._last_step[block_id] = last_step
            references[block_id] -= 1
            if not references[block_id]:
                self._put_back(block_id)

    def touch(self, block_ids: Sequence[int], step: int) -> None:
        """Note that `step` reads or writes `block_ids`, which stay fenced until `step` is done if released before.

        Raises:
            ValueError: one of them is not referenced, or named twice; nothing was changed.
        """
        self._check_referenced(block_ids)
        for block_id in block_ids:
            if step > self._last_step[block_id]:
                self._last_step[block_id] = step

    def finish_step(self, step: int) -> None:
        """Lift the fences of `step`: this step and all before it are done."""
        self.last_done_step = step
        block_ids = self._fenced.pop(step, None)
        if block_ids:
            self.num_fenced -= len(block_ids)
            for block_id in block_ids:
                self._put_back(block_id)

    def keep(self, block_id: int) -> None:
        """Mark `block_id` findable: cached, not free, once it has no references. Idempotent.

        Raises:
            ValueError: the block is free, so its content is undefined.
        """
        if not (self._num_references[block_id] or self._is_fenced(block_id) or self._findable[block_id]):
            raise ValueError(f"block {block_id} is free: its content cannot be kept")
        self._findable[block_id] = True

    def forget(self, block_id: int) -> None:
        """Mark `block_id` not findable: a cached one becomes free. Idempotent."""
        if not self._findable[block_id]:
            return
        self._findable[block_id] = False
        if block_id in self._cached:
            del self._cached[block_id]
            self._free.append(block_id)

    def snapshot(self) -> PoolSnapshot:
        """Copy the references of all blocks, which of them can be found, and the ids of fenced ones. O(blocks)."""
        try:
            references = array("H", self._num_references)
        except OverflowError:
            references = array("H", [min(count, MAX_REFERENCES) for count in self._num_references])
        fenced = array("I", chain.from_iterable(self._fenced.values()))
        return PoolSnapshot(references.tobytes(), bytes(self._findable), fenced.tobytes())

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that every block is in one state, and the references fit `tables`: all block tables and pins."""
        expected = [0] * (self.num_blocks + 1)
        for table in tables:
            for block_id in table:
                expected[block_id] += 1
        assert self._num_references == expected, "reference counts differ from the block tables"
        fenced = [block_id for block_ids in self._fenced.values() for block_id in block_ids]
        used = [block_id for block_id, count in enumerate(expected) if count]
        everything = sorted([*self._free, *self._cached, *fenced, *used])
        assert everything == list(range(1, self.num_blocks + 1)), "a block is lost or doubled"
        assert len(fenced) == self.num_fenced, "fenced blocks are miscounted"
        assert all(step > self.last_done_step for step in self._fenced), "a fence was not lifted"
        for step, block_ids in self._fenced.items():
            assert all(self._last_step[block_id] == step for block_id in block_ids), "a block is fenced by a wrong step"
        assert all(self._findable[block_id] for block_id in self._cached), "a cached block is not findable"
        assert not any(self._findable[block_id] for block_id in self._free), "a free block is findable"
        for block_id in (*self._free, *self._cached):
            assert self._last_step[block_id] <= self.last_done_step, "a block without a fence is still touched"

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        self._num_references[block_id] = 1
        self._findable[block_id] = False
        if self.on_evict is not None:
            self.on_evict(block_id)
        return block_id

    def _revive(self, block_id: int) -> None:
        if self._is_fenced(block_id):
            del self._fenced[self._last_step[block_id]][block_id]
            self.num_fenced -= 1
        else:
            del self._cached[block_id]

    def _put_back(self, block_id: int) -> None:
        last_step = self._last_step[block_id]
        if last_step > self.last_done_step:
            self._fenced.setdefault(last_step, {})[block_id] = None
            self.num_fenced += 1
        elif self._findable[block_id]:
            self._cached[block_id] = None
        else:
            self._free.append(block_id)

    def _is_fenced(self, block_id: int) -> bool:
        return not self._num_references[block_id] and self._last_step[block_id] > self.last_done_step

    def _check_referenced(self, block_ids: Sequence[int]) -> None:
        if len(set(block_ids)) != len(block_ids) or not all(map(self._num_references.__getitem__, block_ids)):
            raise ValueError(f"blocks {list(block_ids)}: one is not in use, or named twice")
