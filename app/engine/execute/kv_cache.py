"""The paged KV cache's tensors, and their layout as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one block in every layer; NHD = [block_size, kv_heads, head_dim] for keys and for values.

    `num_kv_heads` are those of this rank. Blocks may go from one cache to another if their layouts are equal.
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
    """`num_blocks` usable blocks plus block 0, which pads block tables and is never written. Engine thread only."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        shape = (layout.num_layers, 2, num_blocks + 1, layout.block_size, layout.num_kv_heads, layout.head_dim)
        # Zeros, because masked slots are multiplied by zero and must be finite; the system maps them on first use.
        self._blocks = torch.zeros(shape, dtype=layout.dtype)
        self.layers = [(layer[0], layer[1]) for layer in self._blocks]

    def export_blocks(self, block_ids: Sequence[int]) -> bytes:
        """Return the bytes of some blocks: for each block each layer's keys, then values. The layout is stable."""
        chosen = self._blocks[:, :, list(block_ids)].permute(2, 0, 1, 3, 4, 5).contiguous()
        return chosen.view(torch.uint8).numpy().tobytes()

    def import_blocks(self, block_ids: Sequence[int], data: bytes) -> None:
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
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self.layout.dtype)
        shape = self._blocks.shape
        chosen = flat.view(len(block_ids), shape[0], 2, *shape[3:]).permute(1, 2, 0, 3, 4, 5)
        self._blocks[:, :, list(block_ids)] = chosen
