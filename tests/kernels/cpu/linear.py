"""Weights, activations and products of the native linear kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.checkpoint.tensor_types import TENSOR_TYPES
from app.kernels.cpu import records
from app.kernels.cpu.groups import GROUP, KINDS
from app.kernels.cpu.library import NativeLibrary, load_library
from app.kernels.cpu.packing import STORED_TYPES, PackedLinear, pack, pack_stored
from app.kernels.cpu.records import TYPES, Activation, Code, Epilogue, Matrix, Quantized, Record, Rows, Type
from app.kernels.ops import LinearWeight, StoredWeight
from tests.gguf_blocks import random_blocks

ROUNDS = 40


@dataclass
class Activations:
    """Rows in the format for a weight type, and their values."""

    values: Tensor  # float64 [rows, k]
    rows: Tensor
    groups: Tensor | None = None  # of quantized rows: uint8 [rows, groups, bytes of a QuantizedGroup]
    num_planes: int = 0

    def starting_at(self, row: int) -> Activations:
        """The rows from `row` on."""
        groups = None if self.groups is None else self.groups[row:]
        return Activations(self.values[row:], self.rows[row:], groups, self.num_planes)

    @property
    def x(self) -> Matrix:
        return Matrix.of(self.rows) if self.groups is None else Matrix()

    @property
    def quantized(self) -> Quantized:
        if self.groups is None:
            return Quantized()
        return Quantized(
            data=self.rows.data_ptr(),
            stride=self.rows.stride(0),
            groups=self.groups.data_ptr(),
            num_groups=self.groups.shape[1],
            num_planes=self.num_planes,
        )


def make_activations(type: Type, num_rows: int, k: int, num_planes: int = 1) -> Activations:
    """Random rows."""
    return activations_of(type, torch.randn(num_rows, k, generator=torch.Generator().manual_seed(k)), num_planes)


def activations_of(type: Type, values: Tensor, num_planes: int = 1) -> Activations:
    """Rows of `values`, padded to the last lane that a product may read."""
    num_rows, k = values.shape
    rows = torch.zeros(
        num_rows, -(-k // GROUP) * GROUP, dtype=torch.bfloat16 if type is Type.BFLOAT16 else torch.float32
    )
    rows[:, :k] = values
    if type not in KINDS:
        return Activations(rows[:, :k].double(), rows)
    groups = rows.unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(2, keepdim=True) / (127 if num_planes == 1 else 127 * 257)
    integers = (groups / scales).round().int()
    exact = (integers * scales.double()).flatten(1)[:, :k]
    planes = [integers] if num_planes == 1 else [integers + 128 >> 8, integers]
    stored = torch.cat([(plane & 255).to(torch.uint8) for plane in planes], 2).flatten(1)
    sums = integers.sum(2, dtype=torch.int32)
    factors = torch.stack([scales[:, :, 0], scales[:, :, 0] * sums], 2).contiguous()
    negative = -torch.stack([sums, integers[:, :, : GROUP // 2].sum(2, dtype=torch.int32)], 2)
    stored_groups = torch.cat([factors.view(torch.uint8), negative.contiguous().view(torch.uint8)], 2)
    return Activations(exact, stored, stored_groups, num_planes)


def make_packed(
    type: Type, n: int, k: int, *, has_bias: bool = False, interleaved: bool = False, num_planes: int = 1
) -> tuple[PackedLinear, Tensor | None]:
    """A packed matrix and its bias; of types that only files have, random blocks."""
    weight = make_weight(n, k, has_bias=has_bias)
    how = {"interleaved": interleaved, "num_planes": num_planes}
    if type in (*TYPES.values(), Type.INT4):
        return pack(weight, type, **how), weight.bias
    kind = next(kind for kind in TENSOR_TYPES.values() if STORED_TYPES.get(kind.name) is type)
    library = load_library()
    assert library is not None
    return pack_stored(StoredWeight.of(kind, random_blocks(kind, n, k), weight.bias), library, **how), weight.bias


def columns_for(type: Type, k: int) -> int:
    """At least `k`: blocks of files are whole."""
    own = type in (*TYPES.values(), Type.INT4)
    return k if own else -(-k // KINDS[type].block_columns) * KINDS[type].block_columns


def make_weight(n: int, k: int, *, has_bias: bool = False) -> LinearWeight:
    generator = torch.Generator().manual_seed(n * k)
    weight = torch.randn(n, k, generator=generator) * 0.05
    return LinearWeight(weight, torch.randn(n, generator=generator) if has_bias else None)


def multiply(
    library: NativeLibrary,
    packed: PackedLinear,
    activations: Activations,
    out: Tensor,
    *,
    num_rows: int | None = None,
    num_threads: int = 1,
    epilogue: Epilogue = Epilogue.STORE,
    activation: Activation = Activation.SILU,
) -> None:
    fields = records.Linear(
        weight=packed.fields,
        x=activations.x,
        quantized=activations.quantized,
        out=Matrix.of(out),
        epilogue=epilogue,
        activation=activation,
    )
    library.run(Code.LINEAR, fields, len(activations.values) if num_rows is None else num_rows, num_threads)


def accumulate_rounds(
    library: NativeLibrary, num_rows: int, num_threads: int, repeats: Sequence[int] = (0,)
) -> list[Tensor]:
    """Add the same product to zeros ROUNDS times in one replay, so that repeated or missing pieces are detected."""
    packed, activations = pack(make_weight(330, 70), Type.FLOAT32), make_activations(Type.FLOAT32, num_rows, 70)
    results = []
    for _ in repeats:
        out = torch.zeros(num_rows, 352)
        fields = records.Linear(weight=packed.fields, x=activations.x, out=Matrix.of(out), epilogue=Epilogue.ACCUMULATE)
        record = Record(Code.LINEAR, Rows.TOKENS, ctypes.addressof(fields))
        library.replay((Record * ROUNDS)(*[record] * ROUNDS), num_rows, num_rows, num_threads)
        results.append(out)
    return results
