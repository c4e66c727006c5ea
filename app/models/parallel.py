"""Collectives of tensor and pipeline parallelism: no-ops, because only one process is supported."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """Ranks and sizes of tensor and pipeline parallelism, and the collectives that models use."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    def __post_init__(self) -> None:
        if self.tp_size != 1 or self.pp_size != 1:
            raise NotImplementedError("Only one process is supported: tp_size and pp_size must be 1.")

    def all_reduce(self, x: Tensor) -> None:
        """Sum `x` over the tensor-parallel ranks, in place; does nothing at size 1."""

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate `x` of all tensor-parallel ranks along the last dimension; `x` itself at size 1."""
        return x

    def shard(self, size: int) -> slice:
        """Return this rank's part of a dimension of `size`."""
        part = size // self.tp_size
        return slice(self.tp_rank * part, (self.tp_rank + 1) * part)
