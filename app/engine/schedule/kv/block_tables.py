"""Block tables: which blocks hold the tokens of a sequence, and how they are found, shared, copied and dropped.

A table only grows, until all of it is dropped. Sequences share blocks in two ways: a full block whose content is
computed can be found by any sequence with the same tokens up to its end (the prefix cache), and forks share all blocks
of the sequence they come from, the partial last one too. A block that more than one table names is never written: a
sequence that is to write to such a block gets a copy first (copy-on-write).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Many
from itertools import chain
from typing import NamedTuple

from app.contract.engine_counts import BlockCounts
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.kv.block_pool import BlockPool
from app.engine.schedule.kv.kv_connector import KVConnector
from app.engine.schedule.kv.prefix_cache import BlockContent, PrefixCache, extend_chain
from app.engine.schedule.kv.swap_space import Swaps, SwapSpace
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import BlockCopy, BlockLoad


class Hit(NamedTuple):
    """A full block found in the prefix cache: on the device, or in host memory."""

    block_id: int
    is_on_device: bool


class BlockTables:
    """Allocates the blocks that sequences need, and releases them. Engine thread only.

    The next block is due when the current one has no more free slots than `run_ahead`, the number of steps that may
    be in flight besides the newest; no block is allocated that the sequence cannot use.
    """

    def __init__(self, limits: SchedulerLimits, connector: KVConnector) -> None:
        self.pool = BlockPool(limits.num_blocks)
        self.cache = PrefixCache(self.pool)
        self.swap = SwapSpace(limits.num_host_blocks)
        self.num_copied = self.num_unfilled_tokens = 0
        self._copies: list[BlockCopy] = []
        self._loads: list[BlockLoad] = []
        self._connector = connector
        self._held_for_connector: dict[str, list[list[int]]] = {}  # block tables of ended sequences, by request id
        self.block_size = limits.block_size
        self.run_ahead = limits.run_ahead
        self.is_caching = limits.enable_prefix_caching
        if self.is_caching and limits.num_host_blocks:
            self.pool.on_evict = self._swap_out

    @property
    def counts(self) -> BlockCounts:
        """The blocks by their state, and what was done with them."""
        pool = self.pool
        return BlockCounts(
            pool.num_blocks,
            pool.num_free,
            pool.num_cached,
            pool.num_fenced,
            self.swap.num_used,
            pool.num_blocks * self.block_size,
            pool.num_allocated,
            self.num_copied,
            self.num_unfilled_tokens,
        )

    def count_unfilled(self, sequences: Iterable[Sequence]) -> None:
        """Count the slots without a token in the blocks of all open `sequences`. O(sequences): not in every step."""
        empty: dict[int, int] = {}  # by block; of sequences that share one, what the longest has left
        for sequence in sequences:
            first, num_filled = divmod(sequence.num_computed, self.block_size)
            for block_id in sequence.block_table[first:]:
                num_empty = self.block_size - num_filled
                empty[block_id] = min(num_empty, empty.get(block_id, num_empty))
                num_filled = 0
        self.num_unfilled_tokens = sum(empty.values())

    def release_read_blocks(self) -> None:
        """Release the blocks that the connector has read."""
        for request_id in self._connector.take_released():
            for table in self._held_for_connector.pop(request_id, ()):
                self.pool.release(table, 0)

    # --- Growing --------------------------------------------------------------------------------------------------

    def is_in_flight(self, group: SequenceGroup) -> bool:
        """Return whether a step that is not done yet has tokens of `group`."""
        return group.last_step > self.pool.last_done_step

    def num_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many blocks `sequence` lacks to hold its first `num_tokens` tokens."""
        num_slots = min(num_tokens + self.run_ahead, sequence.max_slots)
        return -(-num_slots // self.block_size) - len(sequence.block_table)

    def append(self, sequence: Sequence, count: int) -> list[int]:
        """Give `sequence` `count` more blocks and return them.

        Raises:
            ValueError: fewer are free (see the pool's `can_allocate`); nothing was changed.
        """
        block_ids = self.pool.allocate(count)
        sequence.block_table += block_ids
        return block_ids

    def num_copies(self, sequences: Many[Sequence]) -> int:
        """Return how many blocks must be copied before each of `sequences` can write its next token.

        The last of several sequences that share only a block among themselves writes in place.
        """
        size = self.block_size
        writers = Counter(
            sequence.block_table[index] for sequence in sequences
            if (index := sequence.num_scheduled // size) < len(sequence.block_table)
        )  # fmt: skip
        return sum(min(count, self.pool.num_references(block) - 1) for block, count in writers.items())

    def copy_on_write(self, sequence: Sequence) -> tuple[int, list[int]] | None:
        """Copy the block of the next token if it is shared; return table index and new block, or None."""
        index = sequence.num_scheduled // self.block_size
        if index >= len(sequence.block_table) or self.pool.num_references(sequence.block_table[index]) == 1:
            return None
        source, targets = sequence.block_table[index], self.pool.allocate(1)
        sequence.block_table[index] = targets[0]
        self._copy(source, targets[0])
        self.pool.release([source], sequence.last_step)
        return index, targets

    def copy_prompt_end(self, leader: Sequence, sequence: Sequence) -> None:
        """Copy the prompt's partial last block, if any, to the block that `sequence` already has for that index."""
        index, rest = divmod(leader.num_prompt, self.block_size)
        if rest:
            self._copy(leader.block_table[index], sequence.block_table[index])

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Return the block copies of the step being planned, within the device."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def take_loads(self) -> tuple[BlockLoad, ...]:
        """Return the loads of the step being planned, of blocks that the connector found."""
        loads = tuple(self._loads)
        self._loads.clear()
        return loads

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Share all blocks of `parent` with `child`, which has none."""
        self.pool.share(parent.block_table)
        child.block_table = list(parent.block_table)

    # --- Starting and ending ----------------------------------------------------------------------------------------

    def find_hits(self, sequence: Sequence) -> list[Hit]:
        """Return the cached full blocks of the first tokens of `sequence`; its last token is always computed again."""
        hits: list[Hit] = []
        while (hit := self.find_hit(sequence, len(hits))) is not None:
            hits.append(hit)
        return hits

    def find_hit(self, sequence: Sequence, index: int) -> Hit | None:
        """Return the cached full block for `index` of the table of `sequence`; None for that of its last token.

        A prompt whose tokens are needed themselves, because they are pooled or scored, gets none (`Sequence.may_skip`).
        """
        may_skip = self.is_caching and sequence.may_skip((index + 1) * self.block_size)
        if not may_skip or index >= (sequence.num_tokens - 1) // self.block_size:
            return None
        content = self._content(sequence, index)
        block_id = self.cache.find(content)
        if block_id is not None:
            return Hit(block_id, is_on_device=True)
        block_id = self.swap.cache.find(content)
        return None if block_id is None else Hit(block_id, is_on_device=False)

    def hold_hits(self, hits: list[Hit]) -> None:
        """Keep the blocks of `hits` from being evicted or moved, until `start` or `release_hits`."""
        self.pool.share([hit.block_id for hit in hits if hit.is_on_device])
        self.swap.pool.share([hit.block_id for hit in hits if not hit.is_on_device])

    def release_hits(self, hits: list[Hit]) -> None:
        """Undo `hold_hits`."""
        self.pool.release([hit.block_id for hit in hits if hit.is_on_device], 0)
        self.swap.pool.release([hit.block_id for hit in hits if not hit.is_on_device], 0)

    def num_to_start(self, group: SequenceGroup, hits: list[Hit]) -> int:
        """Return how many free blocks `start` allocates besides the `hits` that are held."""
        leader = group.open[0]
        count = self.num_missing(leader, leader.num_tokens) - sum(1 for hit in hits if hit.is_on_device)
        for sequence in group.open[1:]:
            if sequence.output_token_ids:
                count += self.num_missing(sequence, sequence.num_tokens) - group.num_prompt // self.block_size
        return count

    def start(self, group: SequenceGroup, hits: list[Hit]) -> None:
        """Allocate the blocks for all tokens of a group without blocks; the held `hits` count as computed.

        Sequences with output tokens get their own blocks for these and for the prompt's partial last block, which is
        copied when the leader has computed it; the prompt's full blocks are shared.
        """
        leader, pool = group.open[0], self.pool
        total = self.num_missing(leader, leader.num_tokens)
        if hits:
            self._start_with(hits, leader, total)
        else:
            leader.block_table += pool.allocate(total)
            leader.start_at(0)
        for sequence in group.open[1:]:
            if sequence.output_token_ids:
                shared = leader.block_table[: group.num_prompt // self.block_size]
                pool.share(shared)
                sequence.block_table = list(shared)
                self.append(sequence, self.num_missing(sequence, sequence.num_tokens))
        self._load_external(leader)

    def _start_with(self, hits: list[Hit], leader: Sequence, total: int) -> None:
        """Put the held `hits` at the start of the table of `leader`, and fill the table up to `total` blocks."""
        found = [hit.block_id for hit in hits if hit.is_on_device]
        fresh = iter(self.pool.allocate(total - len(found)))
        table = leader.block_table
        for hit in hits:
            if hit.is_on_device:
                table.append(hit.block_id)
            else:
                table.append(next(fresh))
                self._copy_in(hit.block_id, table[-1])
                self.swap.pool.release([hit.block_id], 0)
        table += fresh
        # Blocks from host memory are offered to the cache once they are on the device.
        leader.start_at(len(hits) * self.block_size, len(found) if len(found) == len(hits) else 0)

    def num_to_swap_in(self, group: SequenceGroup) -> int:
        """Return how many free blocks `swap_in` allocates, those for the next tokens included."""
        references = Counter(chain.from_iterable(sequence.host_table for sequence in group.open))
        writers = Counter(
            sequence.host_table[index] for sequence in group.open
            if (index := sequence.num_scheduled // self.block_size) < len(sequence.host_table)
        )  # fmt: skip
        num_copies = sum(min(count, references[block] - 1) for block, count in writers.items())
        num_missing = sum(self.num_missing(sequence, sequence.num_tokens) for sequence in group.open)
        return num_missing - references.total() + num_copies + len(references)

    def swap_in(self, group: SequenceGroup) -> None:
        """Swap the blocks of a SWAPPED group in; full ones that are still cached on the device are shared."""
        block_ids: dict[int, int] = {}  # by host block
        for sequence in group.open:
            for index, host_block in enumerate(sequence.host_table):
                block_id = block_ids.get(host_block) or self._find_computed(sequence, index)
                if block_id is not None:
                    self.pool.share([block_id])
                else:
                    block_id = self.pool.allocate(1)[0]
                    self._copy_in(host_block, block_id)
                block_ids[host_block] = block_id
                sequence.block_table.append(block_id)
            self.swap.pool.release(sequence.host_table, 0)
            sequence.host_table = []
            sequence.num_kept = 0
        for sequence in group.open:
            self.append(sequence, self.num_missing(sequence, sequence.num_tokens))

    def swap_out(self, group: SequenceGroup) -> None:
        """Move the blocks of a group to host memory."""
        self.swap.swap_out(group, self.block_size)
        for sequence in group.open:
            self._release(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Release all blocks of `sequence`, on device and host; those that a step in flight may touch are fenced."""
        self._release(sequence)
        if sequence.host_table:
            self.swap.pool.release(sequence.host_table, 0)
            sequence.host_table = []

    def end(self, sequence: Sequence) -> None:
        """Release all blocks of an ended sequence; full ones stay while the connector reads them."""
        full = sequence.block_table[: sequence.num_computed // self.block_size]
        if full and self._connector.request_finished(sequence.request, tuple(full)):
            self.pool.touch(full, sequence.last_step)
            self._held_for_connector.setdefault(sequence.request.id, []).append(full)
            sequence.block_table = sequence.block_table[len(full) :]
        self.drop(sequence)

    def keep(self, sequence: Sequence) -> None:
        """Make the full blocks that were computed since the last call findable."""
        num_full = sequence.num_computed // self.block_size
        if not self.is_caching:
            return
        first = sequence.num_kept
        for index in range(first, num_full):
            if not self.cache.add(self._content(sequence, index), sequence.block_table[index]):
                break  # a collision: later blocks would be found under the hash of another text
            sequence.num_kept = index + 1
        end = sequence.num_kept
        self._connector.keep(sequence.contents[first:end], sequence.block_table[first:end])

    def check_integrity(self, groups: Many[SequenceGroup], pinned: list[int], in_flight: list[Swaps]) -> None:
        """Assert that pools and caches fit the tables of all unfinished groups and the swaps in flight."""
        tables = [sequence.block_table for group in groups for sequence in group.open]
        self.pool.check_integrity([pinned, *chain(*self._held_for_connector.values()), *tables])
        self.cache.check_integrity()
        self.swap.check_integrity(groups, in_flight)

    def _copy(self, source: int, target: int) -> None:
        self._copies.append(BlockCopy(source, target))
        self.pool.touch([source, target], self.swap.step)
        self.num_copied += 1

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table, sequence.last_step)
        sequence.block_table = []

    def _copy_in(self, host_block: int, block_id: int) -> None:
        self.swap.copy_in(host_block, block_id)
        self.pool.touch([block_id], self.swap.step)

    def _find_computed(self, sequence: Sequence, index: int) -> int | None:
        if not self.is_caching or (index + 1) * self.block_size > sequence.num_computed:
            return None
        return self.cache.find(self._content(sequence, index))

    def _content(self, sequence: Sequence, index: int) -> BlockContent:
        contents, size = sequence.contents, self.block_size
        while len(contents) <= index:
            start = len(contents) * size
            parent = contents[-1].hash if contents else b""
            contents.append(extend_chain(parent, sequence.tokens(start, start + size), sequence.group.context))
        return contents[index]

    def _swap_out(self, block_id: int) -> None:
        """Copy the content of a cached block, which is about to be evicted, to host memory."""
        content = self.cache.content_of(block_id)
        self.cache.remove(block_id)
        if content is not None:
            self.swap.store(content, block_id)

    def _load_external(self, leader: Sequence) -> None:
        """Ask the connector for the tokens after those that were found, unless their computation is needed."""
        if not leader.may_skip(leader.num_tokens):
            return
        num_tokens = self._connector.num_matched_tokens(leader.group.request, leader.num_computed)
        if num_tokens <= leader.num_computed:
            return
        size = self.block_size
        num_tokens = min(num_tokens, (leader.num_tokens - 1) // size * size)
        first, end = leader.num_computed // size, num_tokens // size
        if end > first:
            block_ids = leader.block_table[first:end]
            load = self._connector.load(leader.request, first, tuple(block_ids))
            if load is not None:
                self._loads.append(load)
                self.pool.touch(block_ids, self.swap.step)
            leader.start_at(end * size, leader.num_kept)
