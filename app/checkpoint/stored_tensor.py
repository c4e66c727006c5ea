"""Where one tensor is stored, in a file of any format."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from app.checkpoint.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor: its type, its shape as in torch (columns last), and its bytes in the file.

    `pair_rows` is 0, or the number of rows of a head whose neighbours are rotated together: they are stored pair after
    pair, and the decoder wants all first numbers of pairs, then all second.
    """

    file: Path
    type: TensorType
    shape: tuple[int, ...]
    begin: int
    end: int
    pair_rows: int = 0

    @property
    def num_weights(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    def rows(self, first: int, count: int) -> StoredTensor:
        """Return `count` of the tensor's rows, counted on through the matrices of a tensor that has several."""
        num_rows, columns = math.prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0], self.shape[1:][-1:]
        row_bytes = (self.end - self.begin) // num_rows
        begin = self.begin + first * row_bytes
        return replace(self, shape=(count, *columns), begin=begin, end=begin + count * row_bytes)
