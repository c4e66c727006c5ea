"""Weights, activations and products of the native linear kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.kernels.cpu import records
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.packing import PackedLinear, pack
from app.kernels.cpu.records import Code, Epilogue, Matrix, Quantized, Record, Rows, Type
from app.kernels.ops import LinearWeight

ROUNDS = 40


@dataclass
class Activations:
    """Rows in the format for a weight type, and their values."""

    values: Tensor  # float64 [rows, k]
    rows: Tensor
    scales: Tensor | None = None  # INT8: of the rows

    def starting_at(self, row: int) -> Activations:
        """The rows from `row` on."""
        return Activations(self.values[row:], self.rows[row:], None if self.scales is None else self.scales[row:])

    @property
    def x(self) -> Matrix:
        return Matrix.of(self.rows) if self.scales is None else Matrix()

    @property
    def quantized(self) -> Quantized:
        if self.scales is None:
            return Quantized()
        return Quantized(self.rows.data_ptr(), self.rows.stride(0), self.scales.data_ptr())


def make_activations(type: Type, num_rows: int, k: int) -> Activations:
    """Random rows, padded to the last lane that a product may read."""
    values = torch.randn(num_rows, k, generator=torch.Generator().manual_seed(k))
    dtype = torch.bfloat16 if type in (Type.BFLOAT16, Type.INT4) else torch.float32
    rows = torch.zeros(num_rows, -(-k // 8) * 8, dtype=dtype)
    rows[:, :k] = values
    if type is not Type.INT8:
        return Activations(rows[:, :k].double(), rows)
    scales = rows.abs().amax(1) / 127
    stored = ((rows / scales[:, None]).round() + 128).to(torch.uint8)
    stored[:, k:] = 255  # padding is multiplied by zeros
    return Activations((stored[:, :k].double() - 128) * scales.double()[:, None], stored, scales)


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
) -> None:
    fields = records.Linear(
        weight=packed.fields,
        x=activations.x,
        quantized=activations.quantized,
        out=Matrix.of(out),
        epilogue=epilogue,
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
