"""Touches the memory pages of KV blocks before a step writes to them.

The system allocates a page when it is first written, and a new block is in a page of each layer's keys and values.
Clearing a huge page takes 0.1 ms, on a virtual machine up to 2 ms, which would delay a step by that much per layer. So
a thread touches the pages of the next blocks while steps use earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from torch import Tensor

from app.kernels.pages import HUGE_PAGE, populate

# Blocks whose pages are touched at once, at least; of small ones as many as a huge page holds.
MIN_AHEAD = 128


class PagesAhead:
    """Keeps the pages of `blocks` [layers, 2, blocks, ...] ready beyond the highest block that is used.

    Engine thread only. Each thread ends after it has touched the pages of some blocks.
    """

    def __init__(self, blocks: Tensor, populate: Callable[[Tensor], bool] = populate) -> None:
        self._regions = blocks.flatten(0, 1)
        self._populate = populate
        bytes_per_block = max(1, self._regions[0, 0].nbytes)
        self._num_ahead = max(MIN_AHEAD, -(-HUGE_PAGE // bytes_per_block))
        self._num_ready = 0
        self._can_populate = True
        self._thread: Thread | None = None
        self.prefault(0)

    def prefault(self, block_id: int) -> None:
        """Touch the pages of the blocks after `block_id` on a thread; blocks up to this one are about to be written."""
        num_needed = min(block_id + 1 + self._num_ahead // 2, self._regions.shape[1])
        if num_needed <= self._num_ready or not self._can_populate:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        first, self._num_ready = self._num_ready, max(block_id + 1, self._num_ready) + self._num_ahead
        # No daemon: Python would kill such a thread inside torch's code, and crash the process.
        self._thread = Thread(target=self._touch, args=(first, self._num_ready), name="quire-pages")
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or Python is about to exit: steps touch the pages themselves
            self._thread, self._can_populate = None, False

    def _touch(self, first: int, end: int) -> None:
        self._can_populate = all(self._populate(region[first:end]) for region in self._regions)
