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

    Engine thread only. Its threads end by themselves, each after a stretch of blocks.
    """

    def __init__(self, blocks: Tensor, populate: Callable[[Tensor], bool] = populate) -> None:
        self._regions = blocks.flatten(0, 1)
        self._populate = populate
        bytes_per_block = max(1, self._regions[0, 0].nbytes)
        self._num_ahead = max(MIN_AHEAD, -(-HUGE_PAGE // bytes_per_block))
        self._num_ready = 0
        self._is_able = True
        self._thread: Thread | None = None
        self.reach(0)

    def reach(self, block_id: int) -> None:
        """Note that blocks up to this one are about to be written."""
        num_wanted = min(block_id + 1 + self._num_ahead // 2, self._regions.shape[1])
        if num_wanted <= self._num_ready or not self._is_able or (self._thread is not None and self._thread.is_alive()):
            return
        first, self._num_ready = self._num_ready, max(block_id + 1, self._num_ready) + self._num_ahead
        # No daemon: Python would kill such a thread inside torch's code, and crash the process.
        self._thread = Thread(target=self._take, args=(first, self._num_ready), name="quire-pages")
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or Python is about to exit: steps touch the pages themselves
            self._thread, self._is_able = None, False

    def wait(self) -> None:
        """Wait until the running threads are done."""
        if self._thread is not None:
            self._thread.join()

    def _take(self, first: int, end: int) -> None:
        self._is_able = all(self._populate(region[first:end]) for region in self._regions)
