"""Copies of KV blocks, within a cache or between two, as words of memory: one launch for all of them.

For every layer, keys and values are one contiguous piece per block; a program moves a part of a piece. One of two
caches may lie in pinned memory of the host, which the device reads and writes in place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from app.kernels.triton.dependent import launch_options, wait_for_previous

# Words per program: 8 accesses of 16 bytes in flight per thread, if the pieces are aligned.
PART = 4096


@triton.jit
def _copy_kernel(
    source, target, copies, source_layer: tl.int64, source_side: tl.int64, source_block, target_layer: tl.int64,
    target_side: tl.int64, target_block, piece_words, parts, PART: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(IS_DEPENDENT)
    # Distances between layers are declared, or they would be of another type, and the kernel compiled anew, in a cache
    # of more than 2^31 words.
    program = tl.program_id(0).to(tl.int64)
    copy = copies + 2 * (program // parts)
    layer, side = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    source += tl.load(copy) * source_block + layer * source_layer + side * source_side
    target += tl.load(copy + 1) * target_block + layer * target_layer + side * target_side
    words = program % parts * PART + tl.arange(0, PART)
    mask = words < piece_words
    tl.store(target + words, tl.load(source + words, mask=mask), mask=mask)


def copy_blocks(copies_C2: Tensor, *, out: Tensor) -> None:
    """Block `target` becomes block `source` of out[L, 2, B, K, G, H], for each (source, target), in any order.

    No target is a source, or a target again. `copies_C2` is int64 on the device.
    """
    swap_blocks(out, copies_C2, out=out)


def swap_blocks(blocks: Tensor, copies_C2: Tensor, *, out: Tensor) -> None:
    """Block `target` of `out` becomes block `source` of `blocks`, for each (source, target), in any order.

    Both are caches [L, 2, B, K, G, H] of any strides in which a block's [K, G, H] are contiguous; one of them may be in
    pinned host memory. `copies_C2` is int64 on the device.
    """
    assert copies_C2.dtype == torch.int64 and copies_C2.is_contiguous() and blocks.dtype == out.dtype
    source, target = _words(blocks), _words(out)
    layers, sides, _, piece_words = source.shape
    parts = triton.cdiv(piece_words, PART)
    if len(copies_C2):
        _copy_kernel[(len(copies_C2) * parts, layers, sides)](
            source, target, copies_C2, *source.stride()[:3], *target.stride()[:3], piece_words, parts,
            PART=PART, num_warps=4, **launch_options(),
        )  # fmt: skip


def _words(cache: Tensor) -> Tensor:
    """Return the cache as [L, 2, B, words of a piece]: of 4 bytes where heads are made of such, else of one."""
    piece = cache.view(*cache.shape[:3], -1)
    return piece.view(torch.int32 if piece.shape[3] * piece.element_size() % 4 == 0 else torch.uint8)
