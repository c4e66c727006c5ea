"""One safetensors file, mapped into memory; what has been read leaves this process's memory again at once."""

from __future__ import annotations

import math
import mmap
import sys
from pathlib import Path

import torch
from torch import Tensor

from app.checkpoint.folder import TensorEntry

Part = tuple[slice, ...]
"""Some of a tensor: one slice per dimension."""

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Read at once, then dropped: large enough for all threads to take part.
_STEP_BYTES = 4 << 20
# A page that is touched brings others along: fault_around_bytes of the kernel, or a whole large folio of its cache.
_AROUND_BYTES = 2 << 20


class MappedFile:
    """Reads tensors, some rows at a time. Use as a context manager. Any one thread.

    The system keeps what it has read of the file in its own cache; mapping it costs this process nothing.

    Raises:
        OSError, ValueError: the file cannot be opened or mapped.
    """

    def __init__(self, file: Path) -> None:
        with file.open("rb") as stream:
            # A private copy that nobody writes to: torch makes no tensors of memory that it may not write.
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        self._data_begin = 8 + int.from_bytes(self._map[:8], "little")

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._map.close()

    def read(self, entry: TensorEntry, part: Part, out: Tensor) -> None:
        """Fill `out` with `part` of the tensor at `entry`, converting the type."""
        dtype, begin = _DTYPES[entry.dtype], self._data_begin + entry.begin
        whole = torch.frombuffer(self._map, dtype=dtype, count=math.prod(entry.shape), offset=begin)
        stored = whole.view(entry.shape)[part]
        row_bytes = stored.stride(0) * dtype.itemsize
        num_rows = max(1, _STEP_BYTES // row_bytes)
        for rows, target in zip(torch.split(stored, num_rows), torch.split(out, num_rows), strict=True):
            target.copy_(rows)
            first = begin + int(rows.storage_offset()) * dtype.itemsize
            self._drop(first, first + len(rows) * row_bytes)

    def _drop(self, begin: int, end: int) -> None:
        if sys.platform == "linux":
            begin = max(0, begin - _AROUND_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(end + _AROUND_BYTES, len(self._map))
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)
