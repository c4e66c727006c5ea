"""The prefix cache on disk: what the KV cache has computed is found by the next process, too (`--kv-disk`).

    engine thread   keep: copies full blocks out of the KV cache ──▶ BlockWriter (queue, thread) ──▶ BlockFolder
    another thread  fetch, before a request is submitted: BlockFolder ──▶ StoredPrefix, in the request
    engine thread   load: StoredPrefix ──▶ the plan of the request's first step

The engine never waits for the disk: to copy a block takes less than a hundredth of the time that computing it took.
Blocks have the hashes of the prefix cache, whose context names the model's print instead of its revision, and a digest
of the API key instead of its place among the keys. So nobody finds what was computed for another key or salt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from math import inf
from weakref import WeakKeyDictionary

from app.config.settings import ServerConfig, tenants
from app.contract.requests import EngineRequest
from app.contract.stored_prefix import StoredPrefix
from app.engine.kv_disk.block_file import BlockDamaged
from app.engine.kv_disk.block_folder import BlockFolder
from app.engine.kv_disk.block_writer import BlockWriter
from app.engine.kv_disk.kv_disk_counts import DAMAGED, FAILED, SLOWER, KVDiskCounts
from app.engine.schedule.kv.kv_connector import KVConnector
from app.engine.schedule.kv.prefix_cache import BlockContent, ChainContexts, PrefixCache, extend_chain
from app.engine.schedule.step_plan import BlockLoad
from app.runtime.clock import Clock, monotonic

MAX_HELD_BYTES = 256 * 2**20
"""How much may wait in memory for the engine."""
_SHARE = 3 / 4  # of what other accounts leave of it, for one account: whoever comes finds some
MAX_LIMIT_S = 10.0
"""How long a request waits at most for what it can have from the disk, where to compute it would take longer: in that
time a disk of 26 MB/s has read all that may wait in memory, and a slower one is hardly of use."""
UNKNOWN_LIMIT_S = 2.0
"""How long it waits while nothing says how long to compute it would take: in a process that has ended no answer yet."""
MAX_LOOKED_UP = 64
"""Blocks of a prompt that are looked up before a thread does it: about 0.2 ms."""
# Weight of the newest read in the running mean of bytes a second.
_NEWEST = 0.3
# Reading that was predicted to be too slow is tried again when it has counted so much faster, each time.
_RETRY = 1.1
_FLUSHED_AT_ONCE = 8
_log = logging.getLogger("quire.kv_disk")


@dataclass(frozen=True, slots=True)
class StoredCache:
    """The KV cache that a store saves and fills.

    Attributes:
        block_size: tokens of a block.
        bytes_per_block: keys and values of a block in all layers.
        contexts: of requests.
        device, host: the prefix caches whose blocks need not be read.
        export: copies blocks out of the cache; engine thread, or after that has ended.
        rates: predicts the seconds of computing a token, and of each token that it attends to; 0 if unknown. Engine
            thread only.
    """

    block_size: int
    bytes_per_block: int
    contexts: ChainContexts
    device: PrefixCache
    host: PrefixCache
    export: Callable[[Sequence[int]], memoryview]
    rates: Callable[[], tuple[float, float]]

    def has(self, block_hash: bytes) -> bool:
        """Return whether a block need not be read. Any thread."""
        return self.device.has(block_hash) or self.host.has(block_hash)


class KVDisk(KVConnector):
    """Implements `KVConnector` by a folder. It finds nothing until `connect` was called, when the model is loaded.

    Attributes:
        counts: those that the metrics show.
    """

    def __init__(self, folder: BlockFolder, clock: Clock = monotonic) -> None:
        self.counts = KVDiskCounts()
        self._folder = folder
        self._clock = clock
        self._writer = BlockWriter(folder, self.counts, clock)
        self._cache: StoredCache | None = None
        self._held: WeakKeyDictionary[StoredPrefix, str] = WeakKeyDictionary()  # and whose they are
        self._rates = (0.0, 0.0)  # as they were when the last sequence ended
        self._bytes_per_s: float | None = None  # of reading
        self._has_warned = False

    def contexts(self, revision: str, server: ServerConfig) -> ChainContexts:
        """Return the contexts of a model whose print is `revision`, for the keys of a server."""
        names = zip(tenants(server), server.api_key, strict=False)
        salt = self._folder.salt
        owners = {name: blake2b(key.encode(), key=salt, digest_size=16).hexdigest() for name, key in names}
        return ChainContexts(revision, owners)

    def connect(self, cache: StoredCache) -> None:
        """Begin to store and to find blocks of `cache`."""
        self._cache = cache

    def current_counts(self) -> KVDiskCounts:
        """Return the counts as they are now."""
        return replace(self.counts, num_blocks=len(self._folder), num_bytes=self._folder.num_bytes)

    # --- Engine thread ------------------------------------------------------------------------------------------

    def num_matched_tokens(self, request: EngineRequest, num_computed: int) -> int:
        stored, cache = request.stored, self._cache
        if stored is None or cache is None or not stored.num_blocks:
            return num_computed
        is_next = stored.first <= num_computed // cache.block_size < stored.end
        return stored.end * cache.block_size if is_next else num_computed

    def load(self, request: EngineRequest, first: int, block_ids: tuple[int, ...]) -> BlockLoad | None:
        stored, cache = request.stored, self._cache
        assert stored is not None and cache is not None, "nothing was found"
        return BlockLoad(block_ids, stored.take(first)[: len(block_ids) * cache.bytes_per_block])

    def keep(self, contents: Sequence[BlockContent], block_ids: Sequence[int]) -> None:
        """Copy the blocks that are not on disk yet, as many as the writer's queue has room for."""
        cache, writer = self._cache, self._writer
        if cache is None:
            return
        missing = [
            (content, block_id)
            for content, block_id in zip(contents, block_ids, strict=True)
            if content.hash not in self._folder and not writer.has(content.hash)
        ]
        if not missing:
            return
        fitting = missing[: writer.room // cache.bytes_per_block]
        self.counts.num_dropped += len(missing) - len(fitting)
        if fitting:
            data = cache.export([block_id for _, block_id in fitting])
            for index, (content, _) in enumerate(fitting):
                writer.put(content, _part(data, index, cache.bytes_per_block))

    def request_finished(self, request: EngineRequest, block_ids: tuple[int, ...]) -> bool:
        """Store what was dropped before, and let the blocks of this text be those that were used last."""
        if self._cache is not None:
            self._rates = self._cache.rates()
            found = [(self._cache.device.content_of(block_id), block_id) for block_id in block_ids]
            kept = [(content, block_id) for content, block_id in found if content is not None]
            self.keep([content for content, _ in kept], [block_id for _, block_id in kept])
            self._writer.touch([content.hash for content, _ in kept])
        return False

    # --- Any thread ---------------------------------------------------------------------------------------------

    def limit_s(self, request: EngineRequest) -> float:
        """Return for how many seconds a request may wait for what its prompt has on disk and not in the KV cache: as
        long as computing that is predicted to take. 0 if there is nothing. Never blocks.
        """
        cache = self._cache
        if cache is None or request.pooling is not None or request.params.prompt_logprobs is not None:
            return 0.0
        num_cached = 0
        for content in islice(_full_blocks(request, cache), MAX_LOOKED_UP):
            if not cache.has(content.hash):
                if content.hash not in self._folder:
                    return 0.0
                break
            num_cached += 1
        start, end = num_cached * cache.block_size, len(request.prompt_token_ids)
        if end - start <= cache.block_size:  # the last token is always computed
            return 0.0
        seconds = self._compute_s(start, end)
        return UNKNOWN_LIMIT_S if seconds == inf else min(seconds, MAX_LIMIT_S)

    def fetch(self, request: EngineRequest, limit_s: float) -> StoredPrefix | None:
        """Read the beginning of a prompt, as far as it is on disk and not in the KV cache. Blocks.

        None if there is nothing, or to compute it is predicted to be faster.
        """
        cache = self._cache
        if cache is None:
            return None
        first, missing = self._missing(request, cache)
        missing = missing[: self._room(request.account) // cache.bytes_per_block]
        if not missing:
            return None
        compute_s = self._compute_s(first * cache.block_size, (first + len(missing)) * cache.block_size)
        if not self._is_faster(len(missing) * cache.bytes_per_block, compute_s):
            self.counts.misses[SLOWER] += 1
            return None
        data = memoryview(bytearray(len(missing) * cache.bytes_per_block))
        num_read = self._read(missing, data, min(limit_s, compute_s))
        if not num_read:
            return None
        stored = StoredPrefix(first, num_read, data[: num_read * cache.bytes_per_block])
        self._held[stored] = request.account
        self._writer.touch([content.hash for content in missing])
        return stored

    def close(self, limit_s: float, *, has_ended: bool) -> None:
        """Store within `limit_s` what waits and, if the engine thread `has_ended`, what the KV cache holds beside it;
        then let other processes have the folder. Blocks."""
        end = self._clock() + limit_s
        cache, self._cache = self._cache, None
        if cache is not None and has_ended:
            self._flush(cache, end)
        self._writer.close(end - self._clock())
        self._folder.close()

    def _missing(self, request: EngineRequest, cache: StoredCache) -> tuple[int, list[BlockContent]]:
        """Return the blocks to read, and the index of the first of them."""
        first, missing = 0, list[BlockContent]()
        for content in _full_blocks(request, cache):
            if not missing and cache.has(content.hash):
                first += 1
            elif content.hash in self._folder:
                missing.append(content)
            else:
                break
        return first, missing

    def _room(self, account: str) -> int:
        """Return how many bytes an account may read now."""
        held = [(len(stored.data), whose == account) for stored, whose in [*self._held.items()]]
        own, others = (sum(size for size, is_own in held if is_own == wanted) for wanted in (True, False))
        return max(0, int((MAX_HELD_BYTES - others) * _SHARE) - own)

    def _compute_s(self, start: int, end: int) -> float:
        """Predict the seconds of computing the tokens of a prompt from `start` to before `end`; `inf` if unknown."""
        per_token, per_attended = self._rates
        return (end - start) * (per_token + per_attended * (start + end) / 2) or inf

    def _is_faster(self, num_bytes: int, compute_s: float) -> bool:
        if self._bytes_per_s is None or num_bytes / self._bytes_per_s < compute_s:
            return True
        self._bytes_per_s *= _RETRY
        return False

    def _read(self, contents: Sequence[BlockContent], into: memoryview, limit_s: float) -> int:
        """Read blocks until the time is over or one is not as it should be; return how many were read."""
        size, began, num_read = len(into) // len(contents), self._clock(), 0
        for index, content in enumerate(contents):
            if self._clock() > began + limit_s:
                self.counts.misses[SLOWER] += 1
                break
            try:
                self._folder.read(content, _part(into, index, size))
            except (BlockDamaged, OSError) as error:
                self._note_miss(error)
                break
            num_read += 1
        seconds = max(self._clock() - began, 1e-6)
        self.counts.num_read += num_read
        self.counts.read_s += seconds
        if num_read:
            rate = num_read * size / seconds
            before = self._bytes_per_s or rate
            self._bytes_per_s = before + _NEWEST * (rate - before)
        return num_read

    def _note_miss(self, error: BlockDamaged | OSError) -> None:
        self.counts.misses[DAMAGED if isinstance(error, BlockDamaged) else FAILED] += 1
        if not self._has_warned and not isinstance(error, FileNotFoundError):  # another thread has made room
            self._has_warned = True
            _log.warning(
                "A block of the KV cache on disk cannot be used: %s. Its prompt is computed instead; further ones are "
                "counted in quire_kv_disk_misses_total.",
                error,
            )

    def _flush(self, cache: StoredCache, end: float) -> None:
        """Write what the KV cache holds, the blocks that were used last first, and as many as have room together."""
        # A file is a little larger than its data, by far less than a fifteenth.
        num_fitting = self._folder.max_bytes * 15 // 16 // cache.bytes_per_block
        found = [*islice(cache.device.newest_first(), num_fitting)]
        self._folder.prefer([content.hash for content, _ in found])  # else those that are there might make room
        missing = iter(
            [
                (content, block_id)
                for content, block_id in found
                if content.hash not in self._folder and not self._writer.has(content.hash)
            ]
        )
        while self._clock() < end and (some := [*islice(missing, _FLUSHED_AT_ONCE)]):
            data = cache.export([block_id for _, block_id in some])
            for index, (content, _) in enumerate(some):
                try:
                    self._folder.write(content, _part(data, index, cache.bytes_per_block))
                except OSError:  # full, or it fails
                    return
                self.counts.num_written += 1


def _full_blocks(request: EngineRequest, cache: StoredCache) -> Iterator[BlockContent]:
    """Yield the full blocks before the last token of a prompt, which is always computed."""
    ids, size, context = request.prompt_token_ids, cache.block_size, cache.contexts.of(request)
    parent = b""
    for end in range(size, len(ids), size):
        content = extend_chain(parent, ids[end - size : end], context)
        parent = content.hash
        yield content


def _part(data: memoryview, index: int, size: int) -> memoryview:
    return data[index * size : (index + 1) * size]
