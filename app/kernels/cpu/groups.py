"""The panels of quantized weights: integers in groups of 32 columns, with their scales and minimums.

Layouts (see also native/panels.h), of 32 rows side by side: a block holds float16 scales `[32]`, then float16 minimums
`[32]` if its kind has them, then its groups. A block is one group, or eight (256 columns); then each group begins with
bytes that its factors are multiplied with: of scales and minimums `[2, 32]`, or of the scales of either half `[2, 32]`.
A group's integers are words of 32 bits, `[bits, 32]`:

- of 8 bits: word s holds columns 4 s to 4 s + 3, a byte each;
- of 4 bits: the low halves of word s are columns 8 s to 8 s + 3, the high ones columns 8 s + 4 to 8 s + 7;
- of 5 bits: a word of fifth bits (bit 8 j + s is of column 4 s + j), then four words as above;
- of 6 bits: for either half of the group a word of fifth and sixth bits (bits 8 j + 2 s and 8 j + 2 s + 1 are of the
  half's column 4 s + j), then two words as above.

A weight is scale · q + minimum, or scale · (q - 2^(bits - 1)) where there are no minimums.
Shape suffixes: P = panels, X = 32 rows, B = blocks, G = groups, F = factors, S = words; rows have any leading shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from app.kernels.cpu.records import Type

PANEL_WIDTH = 32
GROUP = 32
EACH_BYTE = 0x01010101  # times a byte: it in each byte of a word


class GroupKind(NamedTuple):
    """The contents of a type's groups, as `Groups` of native/panels.h has it."""

    bits: int
    has_minimums: bool = False
    block_groups: int = 1
    num_parts: int = 1  # of a group, with scales of their own

    @property
    def num_halves(self) -> int:
        """Float16 factors of a row in a block."""
        return 2 if self.has_minimums else 1

    @property
    def num_bytes(self) -> int:
        """Factors of one byte of a row in a group."""
        return 0 if self.block_groups == 1 else max(self.num_halves, self.num_parts)

    @property
    def block_columns(self) -> int:
        """Columns of a block."""
        return self.block_groups * GROUP

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's block."""
        return 2 * self.num_halves + self.block_groups * (self.num_bytes + GROUP * self.bits // 8)


KINDS = {
    Type.INT8: GroupKind(8),
    Type.INT4: GroupKind(4, has_minimums=True),
    Type.Q4_0: GroupKind(4),
    Type.Q5_0: GroupKind(5),
    Type.Q5_1: GroupKind(5, has_minimums=True),
    Type.Q4_K: GroupKind(4, has_minimums=True, block_groups=8),
    Type.Q5_K: GroupKind(5, has_minimums=True, block_groups=8),
    Type.Q6_K: GroupKind(6, block_groups=8, num_parts=2),
}


class Groups(NamedTuple):
    """The numbers of some rows of weights. The minimums come after the scales."""

    values: Tensor  # uint8 [rows, G, 32]
    halves: Tensor  # float16 [rows, B, F]
    bytes: Tensor | None = None  # uint8 or int8 [rows, G, F]


def write_groups(panels: Tensor, kind: GroupKind, groups: Groups) -> None:
    """Write groups [P, 32, ...] into panels [P, bytes]."""
    halves, bytes, words = _parts(panels, kind)
    halves.copy_(groups.halves.permute(0, 2, 3, 1))
    if groups.bytes is not None:
        bytes.copy_(groups.bytes.view(torch.uint8).permute(0, 2, 3, 1).view(bytes.shape))
    words.copy_(_to_words(groups.values, kind.bits).permute(0, 2, 3, 1).view(words.shape))


def read_groups(panels: Tensor, kind: GroupKind) -> Tensor:
    """Return panels [P, bytes] as float32 weights [P, 32, columns]."""
    halves, bytes, words = _parts(panels, kind)
    values = _from_words(words.permute(0, 4, 1, 2, 3), kind.bits).float()  # [P, X, B, G, 32]
    factors = halves.permute(0, 3, 1, 2).float().unsqueeze(3)  # [P, X, B, 1, F]
    if kind.num_bytes:
        own = bytes.permute(0, 4, 1, 2, 3)
        factors = factors * (own if kind.has_minimums else own.contiguous().view(torch.int8)).float()
    if kind.has_minimums:
        values = values * factors[..., :1] + factors[..., 1:]
    else:
        scales = factors.repeat_interleave(GROUP // kind.num_parts, dim=4)
        values = (values - 2 ** (kind.bits - 1)) * scales
    return values.flatten(2)


def _parts(panels: Tensor, kind: GroupKind) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of panels: halves [P, B, F, 32], bytes [P, B, G, F, 32] and words [P, B, G, S, 32] (int32)."""
    blocks = panels.view(len(panels), -1, PANEL_WIDTH * kind.row_bytes)
    end = 2 * kind.num_halves * PANEL_WIDTH
    halves = torch.unflatten(blocks[:, :, :end].view(torch.float16), 2, (-1, PANEL_WIDTH))
    groups = torch.unflatten(blocks[:, :, end:], 2, (kind.block_groups, -1))
    end = kind.num_bytes * PANEL_WIDTH
    bytes = torch.unflatten(groups[..., :end], 3, (kind.num_bytes, PANEL_WIDTH))
    return halves, bytes, torch.unflatten(groups[..., end:].view(torch.int32), 3, (-1, PANEL_WIDTH))


def _to_words(values: Tensor, bits: int) -> Tensor:
    """Return uint8 [..., 32] as int32 [..., S]: four columns at a time."""
    columns = values.contiguous().view(torch.int32)  # [..., 8]
    if bits == 8:
        return columns
    low = columns & EACH_BYTE * 15 if bits > 4 else columns
    words = low[..., 0::2] | low[..., 1::2] << 4
    if size := bits - 4:
        words = torch.unflatten(words, -1, (size, -1))
        parts = torch.unflatten((columns >> 4 & EACH_BYTE * ((1 << size) - 1)), -1, (size, -1))
        high = parts[..., 0].clone()
        for index in range(1, parts.shape[-1]):
            high |= parts[..., index] << size * index
        words = torch.cat([high.unsqueeze(-1), words], -1).flatten(-2)
    return words


def _from_words(words: Tensor, bits: int) -> Tensor:
    """Undo `_to_words`."""
    bytes = words.contiguous().view(torch.uint8)
    if bits == 8:
        return bytes
    words_of = torch.unflatten(bytes, -1, (_num_high(bits), -1, 4))
    size = bits - 4
    low = words_of[..., 1 if size else 0 :, None, :]
    values = torch.cat([low & 15, low >> 4], -2).flatten(-4)
    if size:
        shifts = torch.arange(0, 8, size, dtype=torch.uint8)[:, None]
        values |= (words_of[..., :1, :] >> shifts & (1 << size) - 1).flatten(-3) << 4
    return values


def _num_high(bits: int) -> int:
    """Return how many words of bits above the fourth a group has, and 1 if it has none."""
    return max(1, bits - 4)
