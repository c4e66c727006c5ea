"""Decodes blocks of GGUF tensors to float32, with the same roundings as the `gguf` package.

Blocks are transposed first: with a row for each byte of a block, all operations are on long rows, which torch
vectorizes. Shapes: B = blocks, X = bytes or weights of a block, G = its groups. `d` and `m` are scales and minima.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from app.models.mapped_file import NUMBERS


def decode(kind: str, raw: Tensor) -> Tensor:
    """Return float32 weights [rows, columns] of uint8 rows [rows, bytes] of the type `kind`; a row is whole blocks.

    F16 and BF16 keep their type.
    """
    if kind in NUMBERS:
        return raw.view(NUMBERS[kind])
    block_bytes, function = _BLOCKS[kind]
    return function(raw.reshape(-1, block_bytes).t().contiguous()).t().contiguous().view(len(raw), -1)


def _half(bytes_XB: Tensor, begin: int) -> Tensor:
    """Return the float16 that begins at a byte of each block, as float32 [B]."""
    return bytes_XB[begin : begin + 2].t().contiguous().view(torch.float16).flatten().float()


def _nibbles(bytes_XB: Tensor) -> Tensor:
    """Return the low halves of all bytes, then the high ones."""
    return torch.cat([bytes_XB & 15, bytes_XB >> 4], dim=-2)


def _pairs_of_groups(bytes_XB: Tensor) -> Tensor:
    """Return 8 groups [G, 32, B] of 128 bytes: the low halves of 32 bytes are one group, their high halves the next."""
    return _nibbles(bytes_XB.view(4, 32, -1)).view(8, 32, -1)


def _fifth_bits(bytes_XB: Tensor) -> Tensor:
    """Return bit i of 4 bytes as bit 4 of weight i."""
    bits = torch.arange(8, dtype=torch.uint8)[:, None]
    return ((bytes_XB[:, None] >> bits) & 1).flatten(0, 1) << 4


def _q8_0(bytes_XB: Tensor) -> Tensor:
    return bytes_XB[2:].view(torch.int8).float().mul_(_half(bytes_XB, 0))


def _q4_0(bytes_XB: Tensor) -> Tensor:
    return _nibbles(bytes_XB[2:]).float().sub_(8).mul_(_half(bytes_XB, 0))


def _q4_1(bytes_XB: Tensor) -> Tensor:
    return _nibbles(bytes_XB[4:]).float().mul_(_half(bytes_XB, 0)).add_(_half(bytes_XB, 2))


def _q5_0(bytes_XB: Tensor) -> Tensor:
    return (_nibbles(bytes_XB[6:]) | _fifth_bits(bytes_XB[2:6])).float().sub_(16).mul_(_half(bytes_XB, 0))


def _q5_1(bytes_XB: Tensor) -> Tensor:
    weights_XB = (_nibbles(bytes_XB[8:]) | _fifth_bits(bytes_XB[4:8])).float()
    return weights_XB.mul_(_half(bytes_XB, 0)).add_(_half(bytes_XB, 2))


def _scaled_groups(bytes_XB: Tensor, weights_GXB: Tensor) -> Tensor:
    """Apply the scales and minima of Q4_K and Q5_K, which have 6 bits for each of 8 groups."""
    low, middle, high = bytes_XB[4:8], bytes_XB[8:12], bytes_XB[12:16]
    scales_GB = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)]).float()
    minima_GB = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)]).float()
    d_GB, m_GB = scales_GB * _half(bytes_XB, 0), minima_GB * _half(bytes_XB, 2)
    return weights_GXB.float().mul_(d_GB[:, None]).sub_(m_GB[:, None]).flatten(0, 1)


def _q4_k(bytes_XB: Tensor) -> Tensor:
    return _scaled_groups(bytes_XB, _pairs_of_groups(bytes_XB[16:]))


def _q5_k(bytes_XB: Tensor) -> Tensor:
    bits_G11 = torch.arange(8, dtype=torch.uint8)[:, None, None]
    high_GXB = ((bytes_XB[16:48] >> bits_G11) & 1) << 4  # bit j of byte i: group j, weight i
    return _scaled_groups(bytes_XB, _pairs_of_groups(bytes_XB[48:]) | high_GXB)


def _q6_k(bytes_XB: Tensor) -> Tensor:
    low = _nibbles(bytes_XB[:128].view(2, 64, -1))
    high = torch.cat([(bytes_XB[128:192].view(2, 32, -1) >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
    weights_GXB = (low | (high << 4)).float().sub_(32).view(16, 16, -1)
    d_GB = bytes_XB[192:208].view(torch.int8).float() * _half(bytes_XB, 208)
    return weights_GXB.mul_(d_GB[:, None]).flatten(0, 1)


_BLOCKS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "Q8_0": (34, _q8_0),
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
