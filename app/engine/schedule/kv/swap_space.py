"""Host memory for KV blocks: of groups that were swapped out, and of cached blocks that were evicted on the device.

The swap space has its own block pool and prefix cache, like the device. Copies are collected while a step is planned
and go into its plan; the plan copies out before it copies in, so a device block that is swapped out may be written in
the same step. A copy is findable only once its step is done. Host blocks that a step reads or writes are fenced until
that step is done, like device blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_pool import BlockPool
from app.engine.schedule.kv.prefix_cache import BlockContent, PrefixCache
from app.engine.schedule.step_plan import BlockCopy, StepPlan

# Until swaps are measured: about what a block of a small model takes at 5 GB/s.
FIRST_BLOCK_S = 1e-4
# Weight of the newest step in the running mean of seconds per block.
_NEWEST = 0.2
# A step's time counts as at most this many times the mean: other processes may have delayed it.
_CLIP = 3.0


class Swaps(NamedTuple):
    """The copies of one step, and the contents that are findable in host memory once it is done."""

    outs: tuple[BlockCopy, ...] = ()
    ins: tuple[BlockCopy, ...] = ()
    stores: tuple[tuple[BlockContent, int], ...] = ()
    groups: tuple[SequenceGroup, ...] = ()  # swapped out in this step


class SwapSpace:
    """`num_blocks` blocks of host memory, possibly 0. Engine thread only.

    `step` is the number of the step being planned; the scheduler sets it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool)
        self.step = 1
        self.block_s = FIRST_BLOCK_S  # seconds that moving one block takes
        self._outs: list[BlockCopy] = []
        self._ins: list[BlockCopy] = []
        self._stores: dict[BlockContent, int] = {}
        self._groups: list[SequenceGroup] = []

    @property
    def num_used(self) -> int:
        """Host blocks that are referenced or can be found."""
        return self.pool.num_blocks - self.pool.num_free + self.pool.num_cached

    def store(self, content: BlockContent, block_id: int) -> None:
        """Copy a cached device block to the host before it is evicted, if a host block is available."""
        if self._find(content) is None and self.pool.can_allocate(1):
            self._copy_out(block_id, content)

    def swap_out(self, group: SequenceGroup, block_size: int) -> None:
        """Copy out all blocks of `group` with tokens that are not on the host yet; shared ones once.

        Enough host blocks must be free (`pool.can_allocate`). Full blocks can be found on the host once the step is
        done.
        """
        host_blocks: dict[int, int] = {}  # by device block
        for sequence in group.open:
            num_blocks = -(-sequence.num_scheduled // block_size)
            for index, block_id in enumerate(sequence.block_table[:num_blocks]):
                content = sequence.contents[index] if index < sequence.num_kept else None
                host_block = host_blocks.get(block_id) or (content and self._find(content))
                if host_block:
                    self.pool.share([host_block])
                else:
                    host_block = self._copy_out(block_id, content)
                    if content is not None:  # one reference is the table's, one is held until the step is done
                        self.pool.share([host_block])
                host_blocks[block_id] = host_block
                sequence.host_table.append(host_block)
        self._groups.append(group)

    def copy_in(self, host_block: int, block_id: int) -> None:
        """Copy a host block to a device block; the host block may be released right after."""
        self.pool.touch([host_block], self.step)
        self._ins.append(BlockCopy(host_block, block_id))

    def take(self) -> Swaps:
        """Return the swaps of the step being planned."""
        if not (self._outs or self._ins or self._groups):
            return _NOTHING
        swaps = Swaps(tuple(self._outs), tuple(self._ins), tuple(self._stores.items()), tuple(self._groups))
        self._outs, self._ins, self._stores, self._groups = [], [], {}, []
        return swaps

    def finish_step(self, plan: StepPlan, swaps: Swaps, transfer_s: float, *, is_done: bool) -> None:
        """Finish the step of `plan`, which carried `swaps`; if the step failed, none of its copies counts."""
        for content, host_block in swaps.stores:
            if is_done:
                self.cache.add(content, host_block)
            self.pool.release([host_block], plan.step)
        self.pool.finish_step(plan.step)
        num_moved = len(plan.swap_outs) + len(plan.swap_ins)
        if num_moved and transfer_s and not (plan.copies or plan.loads):  # these would distort the measure
            measured = min(transfer_s / num_moved, _CLIP * self.block_s)
            self.block_s += _NEWEST * (measured - self.block_s)

    def check_integrity(self, groups: Iterable[SequenceGroup], in_flight: Iterable[Swaps]) -> None:
        """Assert that pool and cache fit the tables of `groups` and the swaps in flight."""
        tables = [sequence.host_table for group in groups for sequence in group.open]
        stores = [host_block for swaps in in_flight for _, host_block in swaps.stores]
        self.pool.check_integrity([*tables, stores, list(self._stores.values())])
        self.cache.check_integrity()

    def _find(self, content: BlockContent) -> int | None:
        """Return the host block that holds `content`, or will with the step being planned."""
        return self._stores.get(content) or self.cache.find(content)

    def _copy_out(self, block_id: int, content: BlockContent | None) -> int:
        host_block = self.pool.allocate(1)[0]
        self.pool.touch([host_block], self.step)
        self._outs.append(BlockCopy(block_id, host_block))
        if content is not None:
            self._stores[content] = host_block
        return host_block


_NOTHING = Swaps()
