"""The prefix cache: which block holds the keys and values of which tokens after which prefix.

Only full blocks are cached, and a full block is never written again. A block is identified by its content: its token
ids, the hash of the block before it, and the context in which it was computed. The hash of a block covers all three,

    hash = blake2b, 16 bytes, over   parent hash | token ids (little-endian int32) | context
    context =                        model revision | tenant | cache salt, each with its length before it

so the hash identifies the whole text up to the block's end, and two tenants or salts never share blocks. Rules:

1. Look a chain up from its head, one `find` per block, and stop at the first miss.
2. A hit is verified: all parts of the content must be equal, not only the hash. Another content with the same hash
   (a collision) is a miss; `add` returns False for it, and the blocks after it must not be added either: their
   parent hash would name the other text.
3. One block per content: a sequence that computes the same content later keeps a block that cannot be found.
4. hash <-> block is a bijection, and the blocks in it are exactly those marked findable in the pool. A block's
   parent may be evicted before the block (a copy of the parent was in use); the block is a hit again once the parent
   is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from app.contract.requests import EngineRequest
from app.engine.schedule.kv.block_pool import BlockPool

HASH_BYTES = 16


class BlockContent(NamedTuple):
    """The content of a full block; equal contents have bitwise equal keys and values."""

    hash: bytes  # 16 bytes; identifies this block and all before it
    parent: bytes  # the hash of the block before; empty for the first one
    token_bytes: bytes  # little-endian int32
    context: bytes  # from `chain_context`


@lru_cache(maxsize=1024)
def chain_context(revision: str, tenant: str | None, cache_salt: str | None) -> bytes:
    """Return bytes that differ for contexts that must not share blocks: different arguments, different bytes."""
    return b"".join(map(_with_length, (revision, tenant, cache_salt)))


class ChainContexts:
    """The contexts in which a model's blocks are computed: each differs in model, tenant or salt. Any thread.

    `revision` names the model. `owners` has other names of tenants, where blocks outlive the process: the names of
    tenants are places among the keys, and another key may have that place next time.
    """

    def __init__(self, revision: str = "", owners: Mapping[str | None, str] | None = None) -> None:
        self._revision = revision
        self._owners = owners or {}

    def of(self, request: EngineRequest) -> bytes:
        """Return the context of a request's blocks."""
        tenant = self._owners.get(request.tenant, request.tenant)
        return chain_context(self._revision, tenant, request.cache_salt)


def extend_chain(parent: bytes, token_ids: Sequence[int], context: bytes) -> BlockContent:
    """Return the content of the full block of `token_ids` after the block with hash `parent` (empty: the first).

    Raises:
        struct.error: a token id is not an int32.
    """
    token_bytes = struct.pack(f"<{len(token_ids)}i", *token_ids)
    digest = blake2b(parent + token_bytes + context, digest_size=HASH_BYTES).digest()
    return BlockContent(digest, parent, token_bytes, context)


class PrefixCache:
    """Finds blocks by their content, and forgets those that the pool evicts. O(1) per block. Engine thread only."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_ids: dict[bytes, int] = {}  # by hash
        self._contents: dict[int, BlockContent] = {}  # by block
        pool.on_evict = self.remove

    def __len__(self) -> int:
        """Return how many blocks can be found, referenced or not."""
        return len(self._contents)

    def find(self, content: BlockContent) -> int | None:
        """Return the block that holds exactly `content`, or None; `BlockPool.share` it before anything is allocated."""
        block_id = self._block_ids.get(content.hash)
        if block_id is None or self._contents[block_id] != content:
            return None
        return block_id

    def has(self, block_hash: bytes) -> bool:
        """Return whether a block with this hash is there now. Any thread."""
        return block_hash in self._block_ids

    def newest_first(self) -> Iterator[tuple[BlockContent, int]]:
        """Yield all contents and their blocks: those in use, as pinned ones, then those that were used last."""
        cached = self._pool.cached_blocks
        in_use = self._contents.keys() - set(cached)
        for block_id in (*in_use, *reversed(cached)):
            yield self._contents[block_id], block_id

    def content_of(self, block_id: int) -> BlockContent | None:
        """Return the content that `block_id` is found by, or None if the block cannot be found."""
        return self._contents.get(block_id)

    def add(self, content: BlockContent, block_id: int) -> bool:
        """Make the full, computed block findable as `content`, unless another block is; return whether one is.

        False means a collision: add none of the blocks that follow in this chain.

        Raises:
            ValueError: the block is free.
        """
        present = self._block_ids.get(content.hash)
        if present is not None:
            return self._contents[present] == content
        assert block_id not in self._contents, f"block {block_id} is full: its content cannot change"
        self._pool.keep(block_id)
        self._block_ids[content.hash] = block_id
        self._contents[block_id] = content
        return True

    def remove(self, block_id: int) -> None:
        """Forget the content of `block_id`; its references stay. Idempotent."""
        content = self._contents.pop(block_id, None)
        if content is not None:
            del self._block_ids[content.hash]
            self._pool.forget(block_id)

    def clear(self) -> None:
        """Forget everything; cached blocks become free."""
        for block_id in self._contents:
            self._pool.forget(block_id)
        self._contents.clear()
        self._block_ids.clear()

    def check_integrity(self) -> None:
        """Assert that hashes and blocks are one to one, and the pool marks the same blocks findable."""
        expected = {content.hash: block_id for block_id, content in self._contents.items()}
        assert self._block_ids == expected, "hashes and blocks are not one to one"
        assert len(expected) == len(self._contents), "two blocks have one hash"
        findable = [block_id for block_id in range(1, self._pool.num_blocks + 1) if self._pool.is_findable(block_id)]
        assert sorted(self._contents) == findable, "the pool marks other blocks findable"


def _with_length(text: str | None) -> bytes:
    if text is None:
        return b"\0\0\0\0"
    encoded = text.encode("utf-8", "surrogatepass")  # JSON may hold lone surrogates
    return struct.pack("<I", len(encoded) + 1) + encoded
