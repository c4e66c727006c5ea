"""Named scratch tensors that are reused from step to step: no allocation once the largest step has been seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Scratch:
    """Hands out uninitialized tensors by name; two live tensors need two names. One thread only."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def get(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor; its contents are whatever the last user of `name` left."""
        numel = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < numel:
            buffer = torch.zeros(numel, dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:numel].view(*shape)

    def like(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor of `tensor`'s shape."""
        return self.get(name, tensor.shape, dtype)
