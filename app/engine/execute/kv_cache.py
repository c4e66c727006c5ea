"""The paged KV cache's tensors, on the device and in host memory, and their layout as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Thread

import torch
from torch import Tensor

from app.engine.schedule.step_plan import BlockCopy
from app.kernels.cpu.torch_ops import TorchOps
from app.kernels.ops import Ops
from app.kernels.pages import HUGE_PAGE, huge_pages, own_pages, populate

# Blocks whose pages are touched at once, at least; of small ones as many as a huge page holds.
MIN_AHEAD = 128


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one block in every layer; NHD = [block_size, kv_heads, head_dim] for keys and for values.

    Blocks may go from one cache to another if their layouts are equal.
    """

    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    layout: str = "NHD"

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block in all layers."""
        return self.block_size * self.bytes_per_token


class KVCache:
    """Usable blocks 1..num_blocks on the device, and 1..num_host_blocks in host memory for swapped blocks.

    Block 0 pads block tables and is never written. On a CPU a block takes memory shortly before it is first used (see
    `PagesAhead`). `pin` lets the device access host memory in place, and `synchronize` waits until the device neither
    reads nor writes blocks: steps on a GPU go through another stream than exports do. Engine thread only.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        num_host_blocks: int = 0,
        ops: Ops | None = None,
        device: torch.device | None = None,
        pin: Callable[[Tensor], None] = lambda tensor: None,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        block = (layout.block_size, layout.num_kv_heads, layout.head_dim)
        # Zeros, because masked slots are multiplied by zero and must be finite.
        shape = (layout.num_layers, 2, num_blocks + 1, *block)
        # Few operations support float8, so its zeros and exports are handled as bytes.
        dtype = torch.uint8 if layout.dtype.itemsize == 1 else layout.dtype
        is_on_host = device is None or device.type == "cpu"
        zeros = huge_pages if is_on_host else partial(torch.zeros, device=device)
        self._storage = zeros(*shape, dtype=dtype)
        self._pages = PagesAhead(self._storage) if is_on_host else None
        self._blocks = self._storage.view(layout.dtype)
        self.layers = [(layer[0], layer[1]) for layer in self._blocks]
        # Each host block is one piece of memory, which is a quarter faster to copy; the system maps it on first use.
        # A GPU reads and writes host blocks in place, so there they are pinned.
        self._host = own_pages(num_host_blocks + 1, layout.num_layers, 2, *block, dtype=self._storage.dtype)
        if num_host_blocks:
            pin(self._host)
        self._host_blocks = self._host.view(layout.dtype).permute(1, 2, 0, 3, 4, 5)
        self._ops = ops or TorchOps()
        self._synchronize = synchronize

    @property
    def num_bytes(self) -> int:
        """The bytes of all blocks, in host memory too, used or not."""
        return self._storage.nbytes + self._host.nbytes

    def prefault(self, block_id: int) -> None:
        """Touch the pages of the blocks after `block_id`; on a GPU there is nothing to touch."""
        if self._pages is not None:
            self._pages.prefault(block_id)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks of the device, keys and values of all layers; no target is a source or a target again."""
        self._ops.copy_blocks(_pairs(copies), out=self._blocks)

    def swap_out(self, copies: Sequence[BlockCopy]) -> None:
        """Copy device blocks to host blocks."""
        self._ops.swap_blocks(self._blocks, _pairs(copies), out=self._host_blocks)

    def swap_in(self, copies: Sequence[BlockCopy]) -> None:
        """Copy host blocks to device blocks."""
        self._ops.swap_blocks(self._host_blocks, _pairs(copies), out=self._blocks)

    def export_blocks(self, block_ids: Sequence[int]) -> memoryview:
        """Return the bytes of some blocks: for each block each layer's keys, then values. The layout is stable."""
        self._synchronize()
        if self._storage.device.type == "cpu":
            shape = self._storage.shape
            chosen = torch.empty(len(block_ids), shape[0], 2, *shape[3:], dtype=self._storage.dtype)
            out = chosen.view(self.layout.dtype).permute(1, 2, 0, 3, 4, 5)
            self._ops.swap_blocks(self._blocks, _pairs([*map(BlockCopy, block_ids, count())]), out=out)
        else:
            chosen = self._storage[:, :, list(block_ids)].permute(2, 0, 1, 3, 4, 5).contiguous().cpu()
        return memoryview(chosen.flatten().view(torch.uint8).numpy().data)

    def import_blocks(self, block_ids: Sequence[int], data: bytes | memoryview) -> None:
        """Write blocks made by `export_blocks` of an equal layout.

        Raises:
            ValueError: the data has another size.
        """
        if len(data) != len(block_ids) * self.layout.bytes_per_block:
            raise ValueError(
                f"{len(data)} bytes are not {len(block_ids)} blocks of {self.layout.bytes_per_block} bytes."
            )
        if not block_ids:
            return
        shared = data if isinstance(data, memoryview) and not data.readonly else bytearray(data)
        flat = torch.frombuffer(shared, dtype=torch.uint8).view(self._storage.dtype)
        shape = self._blocks.shape
        chosen = flat.view(len(block_ids), shape[0], 2, *shape[3:]).permute(1, 2, 0, 3, 4, 5)
        self._synchronize()
        if self._storage.device.type == "cpu":
            pairs = _pairs([*map(BlockCopy, count(), block_ids)])
            self._ops.swap_blocks(chosen.view(self.layout.dtype), pairs, out=self._blocks)
            return
        self._storage[:, :, list(block_ids)] = chosen.to(self._storage.device)
        self._synchronize()


def _pairs(copies: Sequence[BlockCopy]) -> Tensor:
    return torch.tensor(copies, dtype=torch.int64).view(-1, 2)


class PagesAhead:
    """Keeps the pages of `blocks` [layers, 2, blocks, ...] ready beyond the highest block that is used.

    The system allocates a page when it is first written, and a new block is in a page of each layer's keys and values.
    Clearing a huge page takes 0.1 ms, on a virtual machine up to 2 ms, which would delay a step by that much per layer.
    So a thread touches the pages of the next blocks while steps use earlier ones.

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
        # At exit Python would kill a daemon inside torch code, which aborts the process. The engine thread is a daemon,
        # and what it starts would be one too.
        self._thread = Thread(target=self._touch, args=(first, self._num_ready), name="quire-pages", daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or Python is about to exit: steps touch the pages themselves
            self._thread, self._can_populate = None, False

    def _touch(self, first: int, end: int) -> None:
        # Those of the first block before others: a step that needs it may begin already.
        for blocks in (slice(first, first + 1), slice(first + 1, end)):
            if not all(self._populate(region[blocks]) for region in self._regions):
                self._can_populate = False
                return
