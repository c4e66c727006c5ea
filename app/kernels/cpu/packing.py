"""Packs matrices into the panels that native/linear.cpp multiplies with, quantizing them on the way.

Layouts (see also native/panels.h): a panel holds 32 output rows as a list of steps along k; a step holds the same
columns of all rows in 32 lanes side by side. Rows and columns that the matrix lacks are zeros.

- FLOAT32 `[panels, k, 32]`, FLOAT16 likewise, BFLOAT16 `[panels, k / 2, 32, 2]`.
- The other types are quantized, see groups.py.

Interleaved panels hold 16 rows of the matrix' first half (gate), then the same 16 of its second half (up). Biases
follow the panels' order and fill whole panels.

A matrix is packed a few panels at a time: temporaries stay at some megabytes whatever its size.
Shape suffixes: P = panels, S = steps along k, C = columns, G = groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from app.kernels.cpu.groups import GROUP, KINDS, PANEL_WIDTH, Groups, read_groups, write_groups
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.records import Code, Pack, Packed, Type
from app.kernels.ops import LinearWeight, StoredWeight, Weight

ALIGNMENT = 64

# Weights packed at once. Their temporaries fit the caches: quantizing is 2-3 times slower with millions.
CHUNK = 1 << 18

# An INT4 grid is fitted to a group's range narrowed by each of these at both ends; the one of least squared error is
# taken. They bring 0.54 % of squared error on normal weights, the whole range as it is 0.66 %.
INT4_MARGINS = (0.0, 0.03, 0.06, 0.1)

_LARGEST_FLOAT16 = 65504.0

_DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16, Type.BFLOAT16: torch.bfloat16}
_LANE_COLUMNS = {Type.FLOAT32: 1, Type.FLOAT16: 1, Type.BFLOAT16: 2}
_LANE_DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16}

STORED_TYPES = {
    "F32": Type.FLOAT32,
    "F16": Type.FLOAT16,
    "BF16": Type.BFLOAT16,
    "Q8_0": Type.INT8,
    "Q4_1": Type.INT4,
    "Q4_0": Type.Q4_0,
    "Q5_0": Type.Q5_0,
    "Q5_1": Type.Q5_1,
    "Q4_K": Type.Q4_K,
    "Q5_K": Type.Q5_K,
    "Q6_K": Type.Q6_K,
}
"""The types of files that can be packed as they are, and the panels that hold them."""

Allocate = Callable[[int], Tensor]
"""Returns that many bytes of uint8, aligned to 64 bytes."""


def allocate_aligned(num_bytes: int) -> Tensor:
    """Return `num_bytes` of fresh memory (uint8, not initialized), aligned to 64 bytes."""
    memory = torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8)
    begin = -memory.data_ptr() % ALIGNMENT
    return memory[begin : begin + num_bytes]


@dataclass(frozen=True, slots=True)
class PackedLinear(Weight):
    """A matrix [n, k] in panels, as the native product reads it. Immutable; any thread."""

    panels: Tensor  # uint8 [P, bytes of a panel]
    bias: Tensor | None  # float32 [P * 32]
    n: int
    k: int
    type: Type
    is_interleaved: bool
    num_planes: int = 1  # bytes of the activations that a quantized matrix is multiplied with: 1 or 2

    @property
    def fields(self) -> Packed:
        """The record of these tensors; it holds bare addresses, so keep `self` alive."""
        return Packed(
            panels=self.panels.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            n=self.n,
            k=self.k,
            type=self.type,
            is_interleaved=self.is_interleaved,
        )

    @property
    def num_bytes(self) -> int:
        """Memory that the tensors take."""
        return self.panels.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def unpacked(self) -> Tensor:
        """Return the weights that the product really multiplies with, dequantized: float32 [n, k]."""
        out = torch.empty(self.n, self.k)
        step = _panels_per_chunk(self.k)
        for begin in range(0, len(self.panels), step):
            weights_PXC = self._dequantized(begin, min(begin + step, len(self.panels)))
            for rows, lanes in _row_ranges(self.n, begin, begin + len(weights_PXC), self.is_interleaved):
                out[rows] = weights_PXC[:, lanes, : self.k].flatten(0, 1)[: rows.stop - rows.start]
        return out

    def _dequantized(self, begin: int, end: int) -> Tensor:
        """Return panels begin..end as float32 [P, 32, columns], padding included."""
        panels = self.panels[begin:end]
        if self.type in KINDS:
            return read_groups(panels, KINDS[self.type])
        lanes_PSX = panels.view(_LANE_DTYPES.get(self.type, torch.int32)).view(end - begin, -1, PANEL_WIDTH)
        lanes_PXS = lanes_PSX.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        return lanes_PXS.view(_DTYPES[self.type]).float()


def pack(
    weight: LinearWeight,
    type: Type,
    *,
    interleaved: bool = False,
    num_planes: int = 1,
    allocate: Allocate = allocate_aligned,
) -> PackedLinear:
    """Pack `weight` as `type`; INT8 and INT4 are quantized here.

    A memory-mapped source is read once, from begin to end (interleaved: from two places).

    Args:
        weight: matrix [n, k] of any float dtype, and bias [n] or None. Only read.
        type: how the panels store it.
        interleaved: the rows are [gate; up], n / 2 each; every panel gets 16 of both.
        num_planes: see PackedLinear.
        allocate: where the panels go, in one piece.
    """
    packed = _empty(weight.weight.shape, weight.bias, type, interleaved, num_planes, allocate)
    step = _panels_per_chunk(packed.k)
    for begin in range(0, len(packed.panels), step):
        end = min(begin + step, len(packed.panels))
        _write(packed, begin, end, _in_panels(weight.weight, begin, end, interleaved))
    return packed


def pack_stored(
    weight: StoredWeight,
    library: NativeLibrary,
    *,
    interleaved: bool = False,
    num_planes: int = 1,
    allocate: Allocate = allocate_aligned,
) -> PackedLinear:
    """Pack rows of a file: numbers, or the integers and factors of blocks, as they are. For the rest see `pack`.

    By all threads; each row is read once.
    """
    shape = (len(weight.rows), weight.num_columns)
    packed = _empty(shape, weight.bias, STORED_TYPES[weight.kind.name], interleaved, num_planes, allocate)
    library.run(Code.PACK, Pack(packed.fields, weight.rows.data_ptr()), len(packed.panels), torch.get_num_threads())
    return packed


def _empty(
    shape: Sequence[int], bias: Tensor | None, type: Type, interleaved: bool, num_planes: int, allocate: Allocate
) -> PackedLinear:
    """Return panels for a matrix [n, k] that are still to be written."""
    n, k = shape
    assert n > 0 and k > 0 and not (interleaved and n % 2)
    num_panels = _divide_up(n // 2, PANEL_WIDTH // 2) if interleaved else _divide_up(n, PANEL_WIDTH)
    return PackedLinear(
        panels=allocate(num_panels * _panel_bytes(type, k)).view(num_panels, -1),
        bias=None if bias is None else _bias_in_panels(bias, num_panels, interleaved),
        n=n,
        k=k,
        type=type,
        is_interleaved=interleaved,
        num_planes=num_planes,
    )


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _panels_per_chunk(k: int) -> int:
    return max(1, CHUNK // (PANEL_WIDTH * k))


def _panel_bytes(type: Type, k: int) -> int:
    if kind := KINDS.get(type):
        return _divide_up(k, kind.block_columns) * PANEL_WIDTH * kind.row_bytes
    lane_bytes = 2 if type is Type.FLOAT16 else 4
    return _divide_up(k, _LANE_COLUMNS[type]) * PANEL_WIDTH * lane_bytes


def _row_ranges(n: int, begin: int, end: int, interleaved: bool) -> list[tuple[slice, slice]]:
    """Return which rows of the matrix stand in panels begin..end, and in which of their lanes."""
    if not interleaved:
        return [(slice(begin * PANEL_WIDTH, min(end * PANEL_WIDTH, n)), slice(0, PANEL_WIDTH))]
    half, lanes = n // 2, PANEL_WIDTH // 2
    first, last = begin * lanes, min(end * lanes, half)
    return [
        (slice(first, last), slice(0, lanes)),
        (slice(half + first, half + last), slice(lanes, PANEL_WIDTH)),
    ]


def _in_panels(matrix: Tensor, begin: int, end: int, interleaved: bool) -> Tensor:
    """Return rows of panels begin..end as [P, 32, k]; rows that the matrix lacks are zeros."""
    parts = []
    for rows, lanes in _row_ranges(len(matrix), begin, end, interleaved):
        width = lanes.stop - lanes.start
        missing = (end - begin) * width - (rows.stop - rows.start)
        part = functional.pad(matrix[rows], (0, 0, 0, missing)) if missing else matrix[rows]
        parts.append(part.reshape(end - begin, width, -1))
    return torch.cat(parts, 1) if interleaved else parts[0]


def _bias_in_panels(bias: Tensor, num_panels: int, interleaved: bool) -> Tensor:
    return _in_panels(bias[:, None], 0, num_panels, interleaved).flatten().float().contiguous()


def _write(packed: PackedLinear, begin: int, end: int, weights_PXC: Tensor) -> None:
    """Write panels begin..end."""
    panels = packed.panels[begin:end]
    if kind := KINDS.get(packed.type):
        write_groups(panels, kind, _QUANTIZE[packed.type](_in_groups(weights_PXC.float())))
        return
    if missing := -packed.k % _LANE_COLUMNS[packed.type]:
        weights_PXC = functional.pad(weights_PXC, (0, missing))
    values_PXC = weights_PXC.to(_DTYPES[packed.type]).contiguous()
    lanes_PXS = values_PXC.view(_LANE_DTYPES.get(packed.type, torch.int32))
    panels.view(lanes_PXS.dtype).view(len(panels), -1, PANEL_WIDTH).copy_(lanes_PXS.transpose(1, 2))


def _in_groups(weights_PXC: Tensor) -> Tensor:
    """Return [P, 32, G, 32]; the last column is repeated to fill its group, so as not to change its grid."""
    if missing := -weights_PXC.shape[2] % GROUP:
        weights_PXC = functional.pad(weights_PXC, (0, missing), mode="replicate")
    return torch.unflatten(weights_PXC, 2, (-1, GROUP))


def _to_int8(groups: Tensor) -> Groups:
    """Return the scales and the bytes of weights [P, 32, G, 32]."""
    scales = (groups.abs().amax(3, keepdim=True) / 127).clamp_(max=_LARGEST_FLOAT16).half()
    values = (groups / _divisors(scales)).round_().clamp_(-127, 127).add_(128)
    return Groups(values.to(torch.uint8), scales)


def _to_int4(groups: Tensor) -> Groups:
    """Return the scales, the minimums and the integers below 16 of weights [P, 32, G, 32]."""
    factors = _int4_grids(groups)
    scales, minimums = factors[..., :1], factors[..., 1:]
    values = ((groups - minimums.float()) / _divisors(scales)).round_().clamp_(0, 15)
    return Groups(values.to(torch.uint8), factors)


def _divisors(scales: Tensor) -> Tensor:
    """Return the scales in float32; a scale of zero, which only values of zero have, becomes one."""
    return torch.where(scales > 0, scales.float(), 1.0)


def _int4_grids(groups: Tensor) -> Tensor:
    """Return the scale and the minimum of each group, float16 [P, 32, G, 2], of the least squared error tried."""
    least, most = groups.aminmax(dim=3, keepdim=True)
    span = most - least
    means = groups.mean(3, keepdim=True)
    centred = groups - means
    best = torch.full_like(means, -1.0)
    scales, minimums = torch.zeros_like(means), means
    for margin in INT4_MARGINS:
        step = span * ((1 - 2 * margin) / 15)
        values = ((groups - (least + margin * span)) / torch.where(step > 0, step, 1.0)).round_().clamp_(0, 15)
        value_means = values.mean(3, keepdim=True)
        values -= value_means
        product = torch.linalg.vecdot(values, centred).unsqueeze(3)
        square = torch.linalg.vecdot(values, values).unsqueeze(3)
        # The best line through these values has the slope product / square; it takes product² / square off the error.
        slope = product / torch.where(square > 0, square, 1.0)
        gain = product * slope
        is_better = gain > best
        best = torch.where(is_better, gain, best)
        scales = torch.where(is_better, slope, scales)
        minimums = torch.where(is_better, means - slope * value_means, minimums)
    factors = torch.cat((scales, minimums), 3)
    return factors.clamp_(-_LARGEST_FLOAT16, _LARGEST_FLOAT16).half()


_QUANTIZE = {Type.INT8: _to_int8, Type.INT4: _to_int4}
