"""One file of weights, mapped into memory; pages are dropped from the process's memory after they were read."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.file_state import FileState
from app.checkpoint.stored_tensor import StoredTensor

NUMBERS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types of tensors that are no blocks, by their names in files."""
# Bytes that are read before they are dropped: enough for all threads to take part in the copy.
_STEP_BYTES = 4 << 20
# A page fault maps neighbouring pages too: fault_around_bytes of the kernel, or a large folio of its page cache.
_AROUND_BYTES = 2 << 20


class MappedFile:
    """Reads tensors, some rows at a time. Use as a context manager. One thread at a time.

    The file's pages stay in the system's page cache; they do not count as this process's memory. `state` is the file's
    when its header was read.

    Raises:
        OSError, ValueError: the file cannot be opened or mapped.
        ModelRefused: it is another file now.
    """

    def __init__(self, file: Path, state: FileState) -> None:
        self._file, self._state = file, state
        self._stream = file.open("rb")
        try:
            self._check()
            # A private mapping, which is never written: torch makes tensors only of writable memory.
            self._map = mmap.mmap(self._stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._map.close()
        self._stream.close()

    def read(self, tensor: StoredTensor, out: Tensor) -> None:
        """Fill `out` with a tensor of numbers, in the order in which they are stored, converting the type.

        Raises:
            ModelRefused: the file has been changed.
        """
        self._check()
        dtype = NUMBERS[tensor.type.name]
        flat = torch.frombuffer(self._map, dtype=dtype, count=tensor.num_weights, offset=tensor.begin)
        stored = flat.view(tensor.shape)
        row_bytes = stored.stride(0) * dtype.itemsize
        num_rows = max(1, _STEP_BYTES // row_bytes)
        for rows, target in zip(torch.split(stored, num_rows), torch.split(out, num_rows), strict=True):
            target.copy_(rows)
            first = tensor.begin + int(rows.storage_offset()) * dtype.itemsize
            self.drop(first, first + len(rows) * row_bytes)

    def view(self, begin: int, end: int) -> Tensor:
        """Return bytes of the file as uint8 [end - begin], without reading them.

        Raises:
            ModelRefused: the file has been changed.
        """
        self._check()
        return torch.frombuffer(self._map, dtype=torch.uint8, count=end - begin, offset=begin)

    def drop(self, begin: int, end: int) -> None:
        """Drop bytes that have been read from this process's memory; they can be read again."""
        if sys.platform == "linux":
            begin = max(0, begin - _AROUND_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(end + _AROUND_BYTES, len(self._map))
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _check(self) -> None:
        """Check that the file is as its header said: reading a mapped byte that is gone would kill the process."""
        now = FileState.of(self._stream)
        if now.num_bytes < self._state.num_bytes:
            raise rejected(f"{self._file} became shorter while it was loaded; download the model again.")
        if now != self._state:
            raise rejected(f"{self._file} was changed while it was loaded; start again when it is complete.")


def map_files(files: Iterable[Path], states: Mapping[Path, FileState], stack: ExitStack) -> dict[Path, MappedFile]:
    """Map `files` until `stack` is closed; `states` are those when their headers were read.

    Raises:
        ModelRefused: a file cannot be opened or mapped, or was changed since; those before it are closed.
    """
    mapped: dict[Path, MappedFile] = {}
    with ExitStack() as opened:
        for file in set(files):
            try:
                mapped[file] = opened.enter_context(MappedFile(file, states[file]))
            except (OSError, ValueError) as error:
                raise rejected(f"{file} cannot be loaded: {error}; download the model again.") from None
        stack.push(opened.pop_all())
    return mapped
