"""Tile shapes of the attention kernels, chosen by architecture, head width and types.

Chosen by reading machine code, not yet by timing. Compiled for sm_90 and sm_80 none of them spills registers in the
groups, windows and block sizes tried (float32 at widths over 128 aside), and they fit the shared memory: 227 KB on
Hopper; elsewhere they stay below the 99 KB of consumer cards. What decided:

- Prefill on Hopper: 128 rows and 8 warps, two warp groups of wgmma; fewer rows would read keys and values from the L2
  cache faster than it can give them. At a width of 128, tiles of 128 tokens (one program per multiprocessor) rescale
  the sums half as often as tiles of 64; at 64, 128 registers leave room for two programs, which overlap the softmax of
  one with the products of the other. Three stages: with two the next tile is asked for only when it is needed.
- Decode: 16 rows are the least that the matrix units take. Tiles of 32 KB of keys and values and three programs per
  multiprocessor keep far more bytes under way than the memory's latency times its rate.
- Pieces: as decode, but a program that goes on to another piece has fewer registers left for tiles of float8, and
  those of the widest heads take 8 warps outside of Hopper.
- Deterministic: one shape for all kernels, or the same row would be summed by other instructions. It keeps two sets
  of sums, and where decoding most rows are padding, so its tiles are smaller: 64 rows are the least for wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["decode", "pieces", "prefill", "deterministic"]

# Tokens of a split in deterministic attention: changing it changes every answer's last bits.
DETERMINISTIC_SPLIT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """A program's tile: `block_m` query rows by `block_n` tokens, and how Triton compiles it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# For head widths up to 64, 128 and 256.
_Row = tuple[AttentionConfig, AttentionConfig, AttentionConfig]
_HOPPER: dict[Kind, _Row] = {
    "decode": (AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 64, 4, 3), AttentionConfig(16, 32, 4, 3)),
    "pieces": (AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 64, 4, 3), AttentionConfig(16, 32, 4, 3)),
    "prefill": (AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 128, 8, 3), AttentionConfig(128, 32, 8, 3)),
    "deterministic": (AttentionConfig(64, 64, 8, 3), AttentionConfig(64, 64, 8, 3), AttentionConfig(64, 32, 8, 2)),
}
# Tiles of float8 take half the room; they are converted in registers, which leaves fewer of those to the widest heads.
_HOPPER_FLOAT8: dict[Kind, _Row] = {
    "decode": (AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 32, 4, 3)),
    "pieces": (AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 64, 4, 3), AttentionConfig(16, 32, 4, 3)),
    "prefill": (AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 128, 8, 3), AttentionConfig(64, 32, 8, 3)),
    "deterministic": (AttentionConfig(64, 64, 8, 3), AttentionConfig(64, 64, 8, 3), AttentionConfig(64, 16, 8, 2)),
}
_OTHERS: dict[Kind, _Row] = {
    "decode": (AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 64, 4, 3), AttentionConfig(16, 32, 4, 3)),
    "pieces": (AttentionConfig(16, 128, 4, 3), AttentionConfig(16, 64, 4, 3), AttentionConfig(16, 32, 8, 3)),
    "prefill": (AttentionConfig(128, 64, 8, 3), AttentionConfig(128, 32, 8, 3), AttentionConfig(64, 32, 8, 2)),
    "deterministic": (AttentionConfig(128, 64, 8, 2), AttentionConfig(64, 64, 8, 2), AttentionConfig(32, 32, 8, 2)),
}
# No matrix units: for tests, and for models that are kept in float32.
_FLOAT32 = AttentionConfig(16, 32, 8, 2)


def attention_config(
    kind: Kind, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype, capability: tuple[int, int]
) -> AttentionConfig:
    """Return the config for queries and a cache of these types and a GPU of this compute capability.

    "deterministic" is for all kernels in that mode, the others are each for their own kernel.
    """
    column = 0 if head_dim <= 64 else 1 if head_dim <= 128 else 2
    if torch.float32 in (dtype, cache_dtype):
        return _FLOAT32
    if capability[0] != 9:
        return _OTHERS[kind][column]
    return (_HOPPER_FLOAT8 if cache_dtype.itemsize == 1 else _HOPPER)[kind][column]
