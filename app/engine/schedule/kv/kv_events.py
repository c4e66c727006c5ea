"""KV events: tell an external router which prefixes this engine has cached.

Every change of the prefix cache is an event with a number, one higher than the last; the first is 1. A reader keeps
the number of the newest event it has seen and asks for the events `since`. Only the newest `capacity` events are kept.
A reader that is behind these would never learn of older blocks (a system prompt is stored once, long ago), so the
reader gets a snapshot instead of the changes:

    in time     the events after its number, oldest first
    behind      AllCleared, then BlockStored for each block that is cached now, all with the newest number

A number above the newest one gets the snapshot too: that number is from before a restart, after which numbers start
from 1 again (a reader that detects a restart itself asks with -1, which is always behind). A reader that applies all
returned events has the exact state as of the last number. A block's parent may be removed before the block and stored
after it, so readers must not expect to know a parent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from struct import unpack

DEFAULT_CAPACITY = 4096  # about 1 MB


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A full block can be found from now on; `parent_hash` is empty for the first block of a text."""

    event_id: int
    block_hash: bytes
    parent_hash: bytes
    token_ids: tuple[int, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block can no longer be found."""

    event_id: int
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class AllCleared:
    """No block can be found; a snapshot may follow."""

    event_id: int


KVEvent = BlockStored | BlockRemoved | AllCleared

# A stored block as it is kept: hash, parent hash, token bytes. Plain, as one is made for every block.
_Stored = tuple[bytes, bytes, bytes]


class KVEvents:
    """A bounded ring of the newest events, and the blocks that can be found now. Engine thread only.

    Raises:
        ValueError: `capacity` is below 1.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self.last_event_id = 0
        # A stored block, the hash of a removed one, or None: all cleared. Dataclasses are made when they are read.
        self._ring: deque[_Stored | bytes | None] = deque(maxlen=capacity)
        self._stored: dict[bytes, _Stored] = {}  # by hash, in the order of storing

    def block_stored(self, block_hash: bytes, parent_hash: bytes, token_bytes: bytes) -> None:
        """Note that a block can be found; `token_bytes` are its token ids as little-endian int32."""
        stored = self._stored[block_hash] = (block_hash, parent_hash, token_bytes)
        self._append(stored)

    def block_removed(self, block_hash: bytes) -> None:
        """Note that a block can no longer be found.

        Raises:
            KeyError: the block was not stored.
        """
        del self._stored[block_hash]
        self._append(block_hash)

    def all_cleared(self) -> None:
        """Note that no block can be found any more."""
        self._stored.clear()
        self._append(None)

    def since(self, event_id: int) -> tuple[KVEvent, ...]:
        """Return the events that a reader which has seen `event_id` must apply, in order; 0 or less: seen none.

        A reader that is behind the ring, or has a later number, gets a snapshot (see the top of this file).
        """
        num_new = self.last_event_id - event_id
        if not 0 <= num_new <= len(self._ring):
            return (AllCleared(self.last_event_id), *self._picture())
        changes = islice(self._ring, len(self._ring) - num_new, None)
        return tuple(_event(number, change) for number, change in enumerate(changes, event_id + 1))

    def _picture(self) -> Iterator[BlockStored]:
        return (_block_stored(self.last_event_id, stored) for stored in self._stored.values())

    def _append(self, change: _Stored | bytes | None) -> None:
        self._ring.append(change)
        self.last_event_id += 1


def _event(event_id: int, change: _Stored | bytes | None) -> KVEvent:
    if change is None:
        return AllCleared(event_id)
    if isinstance(change, bytes):
        return BlockRemoved(event_id, change)
    return _block_stored(event_id, change)


def _block_stored(event_id: int, stored: _Stored) -> BlockStored:
    block_hash, parent_hash, token_bytes = stored
    size = len(token_bytes) // 4
    return BlockStored(event_id, block_hash, parent_hash, unpack(f"<{size}i", token_bytes), size)
