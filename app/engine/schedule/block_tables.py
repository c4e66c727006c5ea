"""Block tables: which blocks hold the tokens of a sequence. A table only grows, until all of it is dropped."""

from __future__ import annotations

from app.engine.schedule.blocks import BlockPool
from app.engine.schedule.sequence import Sequence


class BlockTables:
    """Gives sequences the blocks their tokens need and takes them back. Engine thread only.

    The next block is due when the current one has no more free slots than `run_ahead`, the number of steps that may
    be in flight besides the newest; never one that the sequence cannot use any more.
    """

    def __init__(self, pool: BlockPool, block_size: int, run_ahead: int) -> None:
        self.pool = pool
        self._block_size = block_size
        self._run_ahead = run_ahead

    def num_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """How many blocks `sequence` lacks to hold its first `num_tokens` tokens."""
        num_slots = min(num_tokens + self._run_ahead, sequence.max_slots)
        return -(-num_slots // self._block_size) - len(sequence.block_table)

    def append(self, sequence: Sequence, count: int) -> list[int]:
        """Give `sequence` `count` more blocks and return them.

        Raises:
            ValueError: fewer are free (ask the pool's `can_allocate`); nothing was changed.
        """
        block_ids = self.pool.allocate(count)
        sequence.block_table += block_ids
        return block_ids

    def drop(self, sequence: Sequence) -> None:
        """Take all blocks of `sequence`; those that a step in flight may touch are fenced."""
        self.pool.release(sequence.block_table, sequence.last_step)
        sequence.block_table = []
