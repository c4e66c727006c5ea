"""One safetensors file, mapped into memory; pages are dropped from the process's memory after they were read."""

from __future__ import annotations

import math
import mmap
import sys
from pathlib import Path

import torch
from torch import Tensor

from app.checkpoint.folder import TensorEntry

Part = tuple[slice, ...]
"""A part of a tensor: one slice per dimension."""

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Bytes that are read before they are dropped: enough for all threads to take part in the copy.
_STEP_BYTES = 4 << 20
# A page fault maps neighbouring pages too: fault_around_bytes of the kernel, or a large folio of its page cache.
_AROUND_BYTES = 2 << 20


class MappedFile:
    """Reads tensors, some rows at a time. Use as a context manager. One thread at a time.

    The file's pages stay in the system's page cache; they do not count as this process's memory.

    Raises:
        OSError, ValueError: the file cannot be opened or mapped.
    """

    def __init__(self, file: Path) -> None:
        with file.open("rb") as stream:
            # A private mapping, which is never written: torch makes tensors only of writable memory.
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        self._data_begin = 8 + int.from_bytes(self._map[:8], "little")

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._map.close()

    def read(self, entry: TensorEntry, part: Part, out: Tensor) -> None:
        """Fill `out` with `part` of the tensor at `entry`, converting the type."""
        dtype, begin = _DTYPES[entry.dtype], self._data_begin + entry.begin
        flat = torch.frombuffer(self._map, dtype=dtype, count=math.prod(entry.shape), offset=begin)
        stored = flat.view(entry.shape)[part]
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
