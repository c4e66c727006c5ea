"""Reads the weights of GGUF files, decoded some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from app.checkpoint.gguf_files import GgufFiles
from app.checkpoint.gguf_header import GgufTensor
from app.checkpoint.gguf_names import stored_name
from app.checkpoint.gguf_spec import family_of
from app.checkpoint.spec import ModelSpec
from app.models.gguf_blocks import decode
from app.models.mapped_file import MappedFile, Part, map_files

# Weights that are decoded at once. Torch computes fewer than 32,768 numbers in one thread: they stay in the cache, and
# no thread waits for others at each of ten operations (on a busy machine that is 50 times slower).
_STEP_WEIGHTS = 2**15 - 1
# Bytes of the file that are read before they are dropped.
_HELD_BYTES = 4 << 20
_ROTATED = ("q_proj", "k_proj")


class GgufSource(ExitStack):
    """A TensorSource for the model's GGUF files, which are mapped into memory. Use as a context manager.

    Raises:
        ModelRefused: on entry, a file cannot be opened.
    """

    def __init__(self, files: GgufFiles, spec: ModelSpec) -> None:
        super().__init__()
        self._tensors = files.tensors
        self._pair_size = spec.head_dim if family_of(files.metadata).has_neighbour_pairs else 0
        self._files: dict[Path, MappedFile] = {}

    def __enter__(self) -> GgufSource:
        self._files = map_files((tensor.file for tensor in self._tensors.values()), self)
        return self

    def read(self, name: str, part: Part, out: Tensor) -> None:
        """See TensorSource.read.

        Raises:
            ModelRefused: another process has truncated the file.
        """
        tensor = self._tensors[stored_name(name)]
        file = self._files[tensor.file]
        file.check_size()
        rows, columns = range(tensor.shape[0])[part[0]], part[1] if len(part) > 1 else slice(None)
        order = None
        if self._pair_size and name.split(".")[-2] in _ROTATED:
            # Each head has pair after pair in the file; the decoder wants all first numbers of pairs, then all second.
            pairs = torch.arange(tensor.shape[0]).view(-1, self._pair_size // 2, 2)
            order = pairs.transpose(1, 2).flatten()
        _read_rows(file, tensor, rows, order, columns, out if out.dim() > 1 else out[:, None])


def _read_rows(
    file: MappedFile, tensor: GgufTensor, rows: range, order: Tensor | None, columns: slice, out: Tensor
) -> None:
    """Fill `out` with adjacent rows of a matrix, or a column from a vector; `order` has the place of each row."""
    num_rows = tensor.shape[0]
    stored = file.view(tensor.begin, tensor.end).view(num_rows, -1)
    step, row_bytes = max(1, _STEP_WEIGHTS * num_rows // tensor.num_weights), stored.shape[1]
    num_held = max(step, _HELD_BYTES // row_bytes)
    for held in _pieces(rows, num_held):
        for some in _pieces(held, step):
            part = slice(some.start, some.stop)
            raw = stored[part] if order is None else stored.index_select(0, order[part])
            out[some.start - rows.start : some.stop - rows.start].copy_(decode(tensor.type.name, raw)[:, columns])
        places = torch.arange(held.start, held.stop) if order is None else order[held.start : held.stop]
        first, last = int(places.min()), int(places.max())
        file.drop(tensor.begin + first * row_bytes, tensor.begin + (last + 1) * row_bytes)


def _pieces(rows: range, size: int) -> Iterator[range]:
    """Yield parts of at most `size` rows."""
    for begin in range(rows.start, rows.stop, size):
        yield range(begin, min(begin + size, rows.stop))
