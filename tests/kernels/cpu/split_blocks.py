"""Blocks of GGUF tensors as integers and factors, by torch operations: what native/pack.cpp must write into panels.

Shapes: rows may have any leading shape; a row is a number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from app.checkpoint.tensor_types import TensorType
from app.kernels.cpu.groups import EACH_BYTE, GROUP, Groups


def split_blocks(kind: TensorType, raw: Tensor) -> Groups:
    """Return the numbers of uint8 rows [rows, bytes] of the type `kind`."""
    return _SPLIT[kind.name](torch.unflatten(raw, -1, (-1, kind.block_bytes)))


def _halves(blocks: Tensor, *begins: int) -> Tensor:
    """Return the float16 numbers that begin at those bytes of each block, as the last dimension."""
    return torch.cat([blocks[..., begin : begin + 2] for begin in begins], -1).view(torch.float16)


def _words(bytes: Tensor) -> Tensor:
    """Return a copy of bytes as int32: operations on four bytes at once are four times as fast."""
    return bytes.contiguous().view(torch.int32)


def _nibbles(bytes: Tensor) -> Tensor:
    """Return the low halves of all bytes, then the high ones, as int32 with four of them each."""
    words = _words(bytes)
    return torch.cat([words & _NIBBLES, words >> 4 & _NIBBLES], -1)


def _fifth_bits(bytes: Tensor) -> Tensor:
    """Return bit i of 4 bytes as bit 4 of integer i, int32 with four integers each."""
    bits = torch.cat([_words(bytes) >> 4 * index & 15 for index in range(8)], -1)
    # The products of four bits put each of them into the lowest place of a byte.
    return (bits * 0x00204081 & EACH_BYTE) << 4


def _q8_0(blocks: Tensor) -> Groups:
    return Groups(_bytes(_words(blocks[..., 2:]) ^ _SIGNS), _halves(blocks, 0))


def _q4_0(blocks: Tensor) -> Groups:
    return Groups(_bytes(_nibbles(blocks[..., 2:])), _halves(blocks, 0))


def _q4_1(blocks: Tensor) -> Groups:
    return Groups(_bytes(_nibbles(blocks[..., 4:])), _halves(blocks, 0, 2))


def _q5_0(blocks: Tensor) -> Groups:
    return Groups(_bytes(_nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])), _halves(blocks, 0))


def _q5_1(blocks: Tensor) -> Groups:
    return Groups(_bytes(_nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])), _halves(blocks, 0, 2))


def _bytes(words: Tensor) -> Tensor:
    """Return int32 [rows, B, words] as groups of bytes [rows, G, 32]."""
    return torch.unflatten(words.view(torch.uint8), -1, (-1, GROUP)).flatten(-3, -2)


def _in_eights(blocks: Tensor, words: Tensor) -> Groups:
    """Return groups whose scales and minimums have 6 bits for each of 8 groups. The file subtracts the minimums."""
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], -1)
    minimums = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], -1)
    halves = _halves(blocks, 0, 2)
    halves[..., 1].neg_()
    return Groups(_bytes(words), halves, torch.stack([scales, minimums], -1).flatten(-3, -2))


def _pairs_of_groups(bytes: Tensor) -> Tensor:
    """Return 8 groups of 128 bytes: the low halves of 32 bytes are one group, their high halves the next."""
    return _nibbles(torch.unflatten(bytes, -1, (4, GROUP))).flatten(-2)


def _q4_k(blocks: Tensor) -> Groups:
    return _in_eights(blocks, _pairs_of_groups(blocks[..., 16:]))


def _q5_k(blocks: Tensor) -> Groups:
    bits = _words(blocks[..., 16:48])  # bit j of byte i: group j, weight i
    high = torch.cat([bits >> group & EACH_BYTE for group in range(8)], -1) << 4
    return _in_eights(blocks, _pairs_of_groups(blocks[..., 48:]) | high)


def _q6_k(blocks: Tensor) -> Groups:
    low = _nibbles(torch.unflatten(blocks[..., :128], -1, (2, 64)))
    bits = _words(torch.unflatten(blocks[..., 128:192], -1, (2, GROUP)))
    high = torch.cat([bits >> shift & 3 * EACH_BYTE for shift in (0, 2, 4, 6)], -1) << 4
    return Groups(
        _bytes((low | high).flatten(-2)),
        _halves(blocks, 208),
        torch.unflatten(blocks[..., 192:208], -1, (8, 2)).flatten(-3, -2),
    )


_NIBBLES = 15 * EACH_BYTE
_SIGNS = -(1 << 31) | 0x00808080  # the highest bit of each byte
_SPLIT: dict[str, Callable[[Tensor], Groups]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
