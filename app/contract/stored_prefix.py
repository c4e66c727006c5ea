"""Keys and values of the beginning of a prompt, read from a store before its request is submitted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False, weakref_slot=True)
class StoredPrefix:
    """The bytes of consecutive full blocks of a prompt, for the engine to take once.

    Attributes:
        first: the index of the first of them in the prompt.
        num_blocks: how many they are.
        data: their bytes, in the layout of `KVCache.export_blocks`; empty when they were taken.
    """

    first: int
    num_blocks: int
    data: memoryview

    @property
    def end(self) -> int:
        """The index of the block after the last."""
        return self.first + self.num_blocks

    def take(self, first: int) -> memoryview:
        """Return the bytes from the block with index `first` on, and let go of them all."""
        num_bytes = len(self.data) // self.num_blocks
        taken, self.data, self.num_blocks = self.data[(first - self.first) * num_bytes :], memoryview(b""), 0
        return taken
