"""KV events: show an external router which prefixes this engine has cached.

Every change of the prefix cache is an event with a number, one higher than the last; the first is 1. A reader keeps
the number of the newest event it has seen and reads the events `since`. Only the newest `capacity` events are kept.
A reader that is behind these would never learn of older blocks (a system prompt is stored once, long ago), so the
reader gets a snapshot instead of the changes:

    in time     the events after its number, oldest first
    behind      AllCleared, then BlockStored for each block that is cached now, all with the newest number

A number above the newest one gets the snapshot too: that number is from before a restart, after which numbers start
from 1 again (a reader that detects a restart itself reads from -1, which is always behind). A reader that applies all
returned events has the exact state as of the last number. A block's parent may be removed before the block and stored
after it, so a parent may be unknown to a reader.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from struct import unpack
from typing import NamedTuple

DEFAULT_CAPACITY = 4096  # about 1 MB


class BlockStored(NamedTuple):
    """A full block can be found from now on; `parent_hash` is empty for the first block of a text."""

    event_id: int
    block_hash: bytes
    parent_hash: bytes
    token_bytes: bytes  # little-endian int32

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of the block."""
        return unpack(f"<{self.block_size}i", self.token_bytes)

    @property
    def block_size(self) -> int:
        """How many tokens the block holds."""
        return len(self.token_bytes) // 4


class BlockRemoved(NamedTuple):
    """A block can no longer be found."""

    event_id: int
    block_hash: bytes


class AllCleared(NamedTuple):
    """No block can be found; a snapshot may follow."""

    event_id: int


KVEvent = BlockStored | BlockRemoved | AllCleared


class KVEvents:
    """A bounded ring of the newest events, and the blocks that can be found now. Engine thread only.

    Raises:
        ValueError: `capacity` is below 1.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self.last_event_id = 0
        self._ring: deque[KVEvent] = deque(maxlen=capacity)
        self._stored: dict[bytes, BlockStored] = {}  # by hash, in the order of storing

    def block_stored(self, block_hash: bytes, parent_hash: bytes, token_bytes: bytes) -> None:
        """Note that a block can be found; `token_bytes` are its token ids as little-endian int32."""
        event = self._stored[block_hash] = BlockStored(self._next_id(), block_hash, parent_hash, token_bytes)
        self._ring.append(event)

    def block_removed(self, block_hash: bytes) -> None:
        """Note that a block can no longer be found.

        Raises:
            KeyError: the block was not stored.
        """
        del self._stored[block_hash]
        self._ring.append(BlockRemoved(self._next_id(), block_hash))

    def all_cleared(self) -> None:
        """Note that no block can be found any more."""
        self._stored.clear()
        self._ring.append(AllCleared(self._next_id()))

    def since(self, event_id: int) -> tuple[KVEvent, ...]:
        """Return the events that a reader which has seen `event_id` must apply, in order; 0 or less: seen none.

        A reader that is behind the ring, or has a later number, gets a snapshot (see the top of this file).
        """
        num_new = self.last_event_id - event_id
        if not 0 <= num_new <= len(self._ring):
            last = self.last_event_id
            return (AllCleared(last), *(event._replace(event_id=last) for event in self._stored.values()))
        return tuple(islice(self._ring, len(self._ring) - num_new, None))

    def _next_id(self) -> int:
        self.last_event_id += 1
        return self.last_event_id
