"""Packs matrices into the panels that native/linear.cpp multiplies with, quantizing them on the way.

Layouts (see also native/panels.h): a panel holds 32 output rows as a list of steps along k; a step holds the same
columns of all rows in 32 lanes side by side. Rows and columns that the matrix lacks are zeros.

- FLOAT32 `[panels, k, 32]`, FLOAT16 likewise, BFLOAT16 `[panels, k / 2, 32, 2]`.
- INT8 `[panels, k / 4, 32, 4]`: round(weight / scale), one scale per output row, and 128 times the sum of each row,
  which takes back that activations are stored 128 too high.
- INT4 `[panels, groups]` of 32 bfloat16 ratios, then `[group / 8, 32]` lanes of 32 bits. Bits 4q of a lane hold its
  column 2q, bits 16 + 4q column 2q + 1, each a signed multiple of the scale of its row and group. A group's scale times
  its ratio is the scale of the group before; `scales` holds the last group's, one per output row.

Interleaved panels hold 16 rows of the matrix' first half (gate), then the same 16 of its second half (up). Scales, sums
and biases follow the panels' order and fill whole panels.

A matrix is packed a few panels at a time: temporaries stay at some megabytes whatever its size.
Shape suffixes: P = panels, S = steps along k, C = columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from app.kernels.cpu.records import Packed, Type
from app.kernels.ops import LinearWeight, Weight

PANEL_WIDTH = 32
INT4_LANE_COLUMNS = 8
ALIGNMENT = 64

# Weights packed at once. Their temporaries fit the caches: quantizing is 2-3 times slower with millions.
CHUNK = 1 << 18

# The largest weight of an INT4 group becomes -d scales for the d of least squared error. Five of them bring 0.66 % of
# squared error on normal weights, thirty 0.65 %, d = 8 alone 0.71 %, the usual largest / 7 0.94 %.
INT4_DIVISORS = (7.0, 7.5, 8.0, 8.5, 9.0)

# A row whose weights are all smaller is as good as zero; a scale for it might not be a number.
NEGLIGIBLE = 1e-30

# Largest quotient of two scales in one row.
MAX_INT4_RATIO = 4096.0

_DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16, Type.BFLOAT16: torch.bfloat16}
_LANE_COLUMNS = {Type.FLOAT32: 1, Type.FLOAT16: 1, Type.BFLOAT16: 2, Type.INT8: 4, Type.INT4: INT4_LANE_COLUMNS}
_LANE_DTYPES = {Type.FLOAT32: torch.float32, Type.FLOAT16: torch.float16}

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
    scales: Tensor | None  # INT8, INT4: float32 [P * 32]
    sums: Tensor | None  # INT8: int32 [P * 32]
    bias: Tensor | None  # float32 [P * 32]
    n: int
    k: int
    type: Type
    group: int  # INT4: columns that share a scale, else 0
    is_interleaved: bool

    @property
    def fields(self) -> Packed:
        """The record of these tensors; it holds bare addresses, so keep `self` alive."""
        return Packed(
            panels=self.panels.data_ptr(),
            scales=_address(self.scales),
            sums=_address(self.sums),
            bias=_address(self.bias),
            n=self.n,
            k=self.k,
            type=self.type,
            group=self.group,
            is_interleaved=self.is_interleaved,
        )

    @property
    def num_bytes(self) -> int:
        """Memory that the tensors take."""
        tensors = (self.panels, self.scales, self.sums, self.bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def unpacked(self) -> Tensor:
        """Return what the product really multiplies with, dequantized: float32 [n, k]."""
        out = torch.empty(self.n, self.k)
        step = _panels_per_chunk(self.k)
        for begin in range(0, len(self.panels), step):
            weights_PXC = self._dequantized(begin, min(begin + step, len(self.panels)))
            for rows, lanes in _row_ranges(self.n, begin, begin + len(weights_PXC), self.is_interleaved):
                out[rows] = weights_PXC[:, lanes, : self.k].flatten(0, 1)[: rows.stop - rows.start]
        return out

    def _dequantized(self, begin: int, end: int) -> Tensor:
        """Panels begin..end as float32 [P, 32, columns], padding included."""
        panels = self.panels[begin:end]
        scales_PX1 = torch.ones(()) if self.scales is None else self.scales.view(-1, PANEL_WIDTH, 1)[begin:end]
        if self.type is Type.INT4:
            return _read_int4(panels, self.group, scales_PX1.squeeze(-1))
        lanes_PSX = panels.view(_LANE_DTYPES.get(self.type, torch.int32)).view(end - begin, -1, PANEL_WIDTH)
        lanes_PXS = lanes_PSX.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        if self.type is Type.INT8:
            return lanes_PXS.view(torch.int8) * scales_PX1
        return lanes_PXS.view(_DTYPES[self.type]).float()


def pack(
    weight: LinearWeight,
    type: Type,
    *,
    interleaved: bool = False,
    group: int = 32,
    allocate: Allocate = allocate_aligned,
) -> PackedLinear:
    """Pack `weight` as `type`. A memory-mapped source is read once, from begin to end (interleaved: from two places).

    Args:
        weight: matrix [n, k] of any float dtype, and bias [n] or None. Only read.
        type: how the panels store it.
        interleaved: the rows are [gate; up], n / 2 each; every panel gets 16 of both.
        group: columns that share a scale (INT4), a multiple of 8.
        allocate: where the panels go, in one piece.
    """
    n, k = weight.weight.shape
    assert n > 0 and k > 0 and group % INT4_LANE_COLUMNS == 0 and not (interleaved and n % 2)
    num_panels = _divide_up(n // 2, PANEL_WIDTH // 2) if interleaved else _divide_up(n, PANEL_WIDTH)
    num_rows = num_panels * PANEL_WIDTH
    packed = PackedLinear(
        panels=allocate(num_panels * _panel_bytes(type, k, group)).view(num_panels, -1),
        scales=torch.empty(num_rows) if type in (Type.INT8, Type.INT4) else None,
        sums=torch.empty(num_rows, dtype=torch.int32) if type is Type.INT8 else None,
        bias=None if weight.bias is None else _bias_in_panels(weight.bias, num_panels, interleaved),
        n=n,
        k=k,
        type=type,
        group=group if type is Type.INT4 else 0,
        is_interleaved=interleaved,
    )
    step = _panels_per_chunk(k)
    for begin in range(0, num_panels, step):
        end = min(begin + step, num_panels)
        _write(packed, begin, end, _in_panels(weight.weight, begin, end, interleaved))
    return packed


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _panels_per_chunk(k: int) -> int:
    return max(1, CHUNK // (PANEL_WIDTH * k))


def _panel_bytes(type: Type, k: int, group: int) -> int:
    if type is Type.INT4:
        return _divide_up(k, group) * PANEL_WIDTH * (2 + group // 2)
    lane_bytes = 2 if type is Type.FLOAT16 else 4
    return _divide_up(k, _LANE_COLUMNS[type]) * PANEL_WIDTH * lane_bytes


def _row_ranges(n: int, begin: int, end: int, interleaved: bool) -> list[tuple[slice, slice]]:
    """Which rows of the matrix stand in panels begin..end, and in which of their lanes."""
    if not interleaved:
        return [(slice(begin * PANEL_WIDTH, min(end * PANEL_WIDTH, n)), slice(0, PANEL_WIDTH))]
    half, lanes = n // 2, PANEL_WIDTH // 2
    first, last = begin * lanes, min(end * lanes, half)
    return [
        (slice(first, last), slice(0, lanes)),
        (slice(half + first, half + last), slice(lanes, PANEL_WIDTH)),
    ]


def _in_panels(matrix: Tensor, begin: int, end: int, interleaved: bool) -> Tensor:
    """Rows of panels begin..end as [P, 32, k]; rows that the matrix lacks are zeros."""
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
    columns = packed.group if packed.type is Type.INT4 else _LANE_COLUMNS[packed.type]
    if missing := -packed.k % columns:
        weights_PXC = functional.pad(weights_PXC, (0, missing))
    rows = slice(begin * PANEL_WIDTH, end * PANEL_WIDTH)
    if packed.type is Type.INT4:
        assert packed.scales is not None
        packed.scales[rows] = _write_int4(panels, weights_PXC.float(), packed.group)
    elif packed.type is Type.INT8:
        assert packed.scales is not None and packed.sums is not None
        bytes_PXC, packed.scales[rows], packed.sums[rows] = _to_int8(weights_PXC.float())
        _write_lanes(panels, bytes_PXC.view(torch.int32))
    else:
        values_PXC = weights_PXC.to(_DTYPES[packed.type]).contiguous()
        _write_lanes(panels, values_PXC.view(_LANE_DTYPES.get(packed.type, torch.int32)))


def _write_lanes(panels: Tensor, lanes_PXS: Tensor) -> None:
    panels.view(lanes_PXS.dtype).view(len(panels), -1, PANEL_WIDTH).copy_(lanes_PXS.transpose(1, 2))


def _to_int8(weights_PXC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return bytes like `weights_PXC`, and the scale and the sum times 128 of each row [P * 32]."""
    largest_PX = weights_PXC.abs().amax(2)
    scales_PX = torch.where(largest_PX > NEGLIGIBLE, largest_PX / 127, 1.0)
    values_PXC = (weights_PXC / scales_PX[:, :, None]).round_()
    sums_PX = values_PXC.sum(2).to(torch.int32) * 128
    return values_PXC.to(torch.int8), scales_PX.flatten(), sums_PX.flatten()


def _int4_blocks(panels: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return views of the panels: the ratios [P, groups, 32], and the lanes [P, groups, S, 32]."""
    ratio_bytes = 2 * PANEL_WIDTH
    blocks = panels.view(len(panels), -1, ratio_bytes + group // 2 * PANEL_WIDTH)
    lanes = blocks[:, :, ratio_bytes:].view(torch.int32)
    return blocks[:, :, :ratio_bytes].view(torch.bfloat16), lanes.view(*blocks.shape[:2], -1, PANEL_WIDTH)


def _write_int4(panels: Tensor, weights_PXC: Tensor, group: int) -> Tensor:
    """Write the panels and return the scale of each row's last group [P * 32]."""
    groups = weights_PXC.view(len(panels), PANEL_WIDTH, -1, group)  # [P, 32, groups, group]
    wanted = _int4_scales(groups)
    ratios = torch.ones_like(wanted, dtype=torch.bfloat16)
    ratios[:, :, 1:] = wanted[:, :, :-1] / wanted[:, :, 1:]
    last_scales = wanted[:, :, -1]
    scales = _int4_scales_of(ratios, last_scales)
    values = (groups / scales.unsqueeze(-1)).round_().clamp_(-8, 7).to(torch.int8).view(torch.uint8) & 15
    # A lane's columns as [q / 2, q % 2, even or odd]: two neighbouring q share a byte, the even ones' bytes come first.
    pairs = values.view(*groups.shape[:3], -1, 2, 2, 2)
    lane_bytes = (pairs[..., 0, :] | pairs[..., 1, :] << 4).transpose(4, 5).contiguous()
    lanes = lane_bytes.flatten(3).view(torch.int32)  # [P, 32, groups, S]
    ratios_out, lanes_out = _int4_blocks(panels, group)
    ratios_out.copy_(ratios.transpose(1, 2))
    lanes_out.copy_(lanes.permute(0, 2, 3, 1))
    return last_scales.flatten()


def _int4_scales(groups: Tensor) -> Tensor:
    """Return the scale of each group, [P, 32, groups], with the least squared error among INT4_DIVISORS."""
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    largest = torch.where(largest.abs() > NEGLIGIBLE, largest, 1.0)
    best = torch.zeros_like(largest)
    scales = torch.zeros_like(largest)
    values = torch.empty_like(groups)
    for divisor in INT4_DIVISORS:
        torch.mul(groups, -divisor / largest, out=values).round_().clamp_(-8, 7)
        product = torch.linalg.vecdot(groups, values).unsqueeze(-1)
        square = torch.linalg.vecdot(values, values).unsqueeze(-1)
        # The best scale of these values is product / square; it takes product² / square off the squared error.
        gain = product * product / square
        is_better = gain > best
        best = torch.where(is_better, gain, best)
        scales = torch.where(is_better, product / square, scales)
    scales = scales.squeeze(-1)
    # Sums are divided by each scale on their way: none may be tiny beside the row's others, which it hardly adds to.
    least = (scales.abs().amax(-1, keepdim=True) / MAX_INT4_RATIO).clamp_(min=NEGLIGIBLE)
    return torch.where(scales.abs() < least, least, scales)


def _int4_scales_of(ratios: Tensor, last_scales: Tensor) -> Tensor:
    """Return the scales of all groups, [P, 32, groups]: each is the next one times the next one's ratio."""
    factors = ratios.double().roll(-1, 2)
    factors[:, :, -1] = last_scales
    return factors.flip(2).cumprod(2).flip(2).float()


def _read_int4(panels: Tensor, group: int, last_scales: Tensor) -> Tensor:
    """Return panels [P, bytes] as float32 [P, 32, columns]."""
    ratios, lanes = _int4_blocks(panels, group)
    scales = _int4_scales_of(ratios.transpose(1, 2), last_scales)
    shifts = torch.tensor([[4 * q, 4 * q + 16] for q in range(4)], dtype=torch.int32).flatten()
    values = ((lanes.unsqueeze(-1) >> shifts & 15) ^ 8) - 8  # [P, groups, S, 32, 8]
    weights = values.permute(0, 3, 1, 2, 4).flatten(3) * scales.unsqueeze(-1)  # [P, 32, groups, group]
    return weights.flatten(2)
