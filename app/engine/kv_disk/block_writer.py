"""Writes blocks behind the engine: a thread with a bounded queue, which drops what does not fit.

The thread has the priority of all others: one that the system lets wait while it has the interpreter's lock would make
the engine and all clients wait. Nearly all of its time goes into checksums and writing, for which it needs no lock.

A disk that is full or fails is left alone for a while; the log says so once, and once when it works again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition, Thread

from app.engine.kv_disk.block_folder import BlockFolder
from app.engine.kv_disk.kv_disk_counts import KVDiskCounts
from app.engine.schedule.kv.prefix_cache import BlockContent
from app.runtime.clock import Clock, monotonic

MAX_QUEUED_BYTES = 64 * 2**20
MAX_TOUCHED = 50_000
"""Blocks that may wait for their times of use to be noted: a second of work."""
PAUSE_S = 30.0
"""How long a disk that has failed is left alone."""
_log = logging.getLogger("quire.kv_disk")


class BlockWriter:
    """Puts blocks into a folder. Any thread, and no method but `close` waits for the disk."""

    def __init__(self, folder: BlockFolder, counts: KVDiskCounts, clock: Clock = monotonic) -> None:
        self._folder = folder
        self._counts = counts
        self._clock = clock
        self._wake = Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._queued: set[bytes] = set()  # by hash, the one that is being written included
        self._num_bytes = 0  # of the same
        self._num_touched = 0  # blocks of texts that wait to be noted
        self._paused_until: float | None = None
        self._is_closing = False
        # A daemon: a disk that hangs must not keep the process.
        self._thread = Thread(target=self._run, name="quire-kv-disk", daemon=True)
        self._thread.start()

    @property
    def room(self) -> int:
        """The bytes that `put` would take now; none while the disk is left alone."""
        if self._paused_until is not None and self._clock() < self._paused_until:
            return 0
        return max(0, MAX_QUEUED_BYTES - self._num_bytes)

    def has(self, block_hash: bytes) -> bool:
        """Return whether a block waits to be written."""
        return block_hash in self._queued

    def put(self, content: BlockContent, data: memoryview) -> None:
        """Write a block later; the caller has looked at `room`."""
        with self._wake:
            if content.hash not in self._queued:
                self._queued.add(content.hash)
                self._num_bytes += len(data)
                self._queue.append(partial(self._write, content, data))
                self._wake.notify()

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Note later that the blocks of a text were used, see `BlockFolder.touch`; not if too much waits."""
        with self._wake:
            if self._num_touched + len(hashes) <= MAX_TOUCHED:
                self._num_touched += len(hashes)
                self._queue.append(partial(self._touch, hashes))
                self._wake.notify()

    def close(self, limit_s: float) -> None:
        """Write what waits, for at most `limit_s`, and end the thread."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._thread.join(max(limit_s, 0.0))

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    if self._is_closing:
                        return
                    self._wake.wait()
                work = self._queue.popleft()
            work()

    def _write(self, content: BlockContent, data: memoryview) -> None:
        self._try_to_write(content, data)
        with self._wake:
            self._queued.discard(content.hash)
            self._num_bytes -= len(data)

    def _touch(self, hashes: Sequence[bytes]) -> None:
        self._folder.touch(hashes)
        with self._wake:
            self._num_touched -= len(hashes)

    def _try_to_write(self, content: BlockContent, data: memoryview) -> None:
        if self._paused_until is not None and self._clock() < self._paused_until:
            self._counts.num_dropped += 1
            return
        try:
            self._folder.write(content, data)
        except OSError as error:
            self._counts.num_dropped += 1
            if self._paused_until is None:
                _log.warning(
                    "The KV cache on disk %s cannot be written: %s. Prompts are computed as without it.",
                    self._folder.path,
                    error.strerror,
                )
            self._paused_until = self._clock() + PAUSE_S
        else:
            self._counts.num_written += 1
            if self._paused_until is not None:
                self._paused_until = None
                _log.info("The KV cache on disk %s can be written again.", self._folder.path)
