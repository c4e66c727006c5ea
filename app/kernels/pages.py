"""Memory taken from the system in whole pages, beside what `malloc` keeps for itself.

What is large and short-lived leaves holes in malloc's memory that are as large: the process would stay at its highest
mark. What lives long and is read from end to end in every step is read faster from huge pages.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20  # bytes
# Taken at once; what is not used yet costs nothing.
_PIECE_BYTES = 256 << 20
_ALIGNMENT = 64
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: Linux 5.14


def own_pages(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return zeros in pages of their own, which the system gets back as soon as the tensor is gone.

    Raises:
        MemoryError: there is not so much.
    """
    return torch.frombuffer(_map(max(1, math.prod(shape)) * dtype.itemsize), dtype=dtype)[: math.prod(shape)].view(
        shape
    )


def huge_pages(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return zeros in huge pages of their own, where the system has them: each takes memory when it is first written.

    They begin at a multiple of a huge page; the system gets them back as soon as the tensor is gone.

    Raises:
        MemoryError: there is not so much.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    return _piece(max(1, num_bytes))[:num_bytes].view(dtype).view(shape)


def populate(memory: Tensor) -> bool:
    """Let contiguous `memory` take its pages now, as writing to all of it would; False if the system cannot.

    Any thread, also while others use the memory: what is there stays. Releases the GIL. A huge page at a time: the
    system keeps the process from mapping memory meanwhile, and `malloc` of a thread that has the GIL may need to.
    """
    if sys.platform != "linux":
        return False
    begin, end = memory.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE, memory.data_ptr() + memory.nbytes
    madvise = ctypes.CDLL(None).madvise
    while begin < end:
        piece_end = min(end, (begin // HUGE_PAGE + 1) * HUGE_PAGE)
        if madvise(ctypes.c_void_p(begin), ctypes.c_size_t(piece_end - begin), ctypes.c_int(_POPULATE_WRITE)):
            return False
        begin = piece_end
    return True


class HugePages:
    """Hands out memory in order, in huge pages where the system has them. Engine thread only.

    It goes back when none of its tensors is left.
    """

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def allocate(self, num_bytes: int) -> Tensor:
        """Return `num_bytes` of zeros (uint8), aligned to 64 bytes.

        Raises:
            MemoryError: there is not so much.
        """
        taken = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if taken > len(self._free):
            self._free = _piece(max(taken, _PIECE_BYTES))
        memory, self._free = self._free[:num_bytes], self._free[taken:]
        return memory


def _piece(num_bytes: int) -> Tensor:
    piece = _map(num_bytes + HUGE_PAGE)
    if sys.platform == "linux":
        with suppress(OSError):  # a kernel without huge pages: smaller ones do
            piece.madvise(mmap.MADV_HUGEPAGE)
    begin = -torch.frombuffer(piece, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    return torch.frombuffer(piece, dtype=torch.uint8, offset=begin, count=num_bytes)


def _map(num_bytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, num_bytes)
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise MemoryError(f"the system does not give {num_bytes:,} bytes") from None
