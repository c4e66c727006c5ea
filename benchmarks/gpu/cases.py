"""What a kernel is measured on: cases, and inputs that several kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from app.kernels.triton.row_layout import TABLE, row_width
from benchmarks.gpu.bounds import Work
from benchmarks.gpu.timing import Call

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel on one shape; `setup` makes calls that do the same on inputs of their own, on a device."""

    name: str
    work: Work
    setup: Callable[[torch.device], Sequence[Call]]
    about: Mapping[str, Any] = field(default_factory=dict)


class CaseModule(Protocol):
    """What a module of kernel_cases has."""

    def cases(self) -> Iterator[Case]:
        """Yield the cases, the most telling first."""


class Heads(NamedTuple):
    """Query heads, key heads and their width; the engine's most common ones have names."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return f"D{self.head_dim} G{self.num_heads // self.num_kv_heads}"


class Paged(NamedTuple):
    """A cache of random keys and values, and the block tables of some sequences in it, at random places."""

    k_cache: Tensor
    v_cache: Tensor
    tables: Tensor


def randn(*shape: int, place: torch.device, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return random numbers; never zeros, which take less power."""
    numbers = torch.empty(shape, dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype, device=place).normal_()
    return numbers.to(dtype)


def integers(values: Sequence[int] | Tensor, place: torch.device) -> Tensor:
    """Return int32 numbers on the device."""
    return torch.as_tensor(values).to(device=place, dtype=torch.int32)


def paged(place: torch.device, num_seqs: int, context: int, heads: Heads, dtype: torch.dtype) -> Paged:
    """Return a paged cache with so many sequences of a context."""
    num_blocks = -(-context // BLOCK_SIZE)
    shape = (num_seqs * num_blocks + 1, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)
    order = 1 + torch.randperm(num_seqs * num_blocks, device=place)
    # As the engine has them: part of a tensor of state rows.
    state_SW = torch.zeros(num_seqs + 1, row_width(num_blocks), dtype=torch.int32, device=place)
    state_SW[1:, TABLE : TABLE + num_blocks] = order.view(num_seqs, num_blocks).int()
    return Paged(randn(*shape, place=place, dtype=dtype), randn(*shape, place=place, dtype=dtype), state_SW[:, TABLE:])


def processors(place: torch.device) -> tuple[int, tuple[int, int]]:
    """Return the multiprocessors and the compute capability; those of an H200 where there is no GPU."""
    if place.type != "cuda":
        return 132, (9, 0)
    properties = torch.cuda.get_device_properties(place)
    return properties.multi_processor_count, (properties.major, properties.minor)
