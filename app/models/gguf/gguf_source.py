"""Reads the weights of GGUF files, decoded some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.gguf.gguf_header import GgufTensor
from app.checkpoint.gguf.gguf_spec import family_of, find_gguf_tensors
from app.checkpoint.spec import ModelSpec
from app.checkpoint.tensor_types import TensorType
from app.kernels.ops import GroupedWeight
from app.models.gguf.gguf_blocks import decode
from app.models.loader import TensorSource
from app.models.mapped_file import MappedFile, map_files

# Weights that are decoded at once. Torch computes fewer than 32,768 numbers in one thread: they stay in the cache, and
# no thread waits for others at each of ten operations (on a busy machine that is 50 times slower).
_STEP_WEIGHTS = 2**15 - 1
# Bytes of the file that are read before they are dropped.
_HELD_BYTES = 4 << 20
_ROTATED = ("q_proj", "k_proj")


class GgufSource(ExitStack, TensorSource):
    """A TensorSource for the model's GGUF files, which are mapped into memory. Use as a context manager.

    Raises:
        ModelRefused: on entry, a file cannot be opened, or was changed since its header was read.
    """

    def __init__(self, files: GgufFiles, spec: ModelSpec) -> None:
        super().__init__()
        self._tensors, self._states = find_gguf_tensors(spec, files), files.states
        self._pair_size = spec.head_dim if family_of(files.metadata).has_neighbour_pairs else 0
        self._files: dict[Path, MappedFile] = {}

    def __enter__(self) -> GgufSource:
        self._files = map_files((tensor.file for tensor in self._tensors.values()), self._states, self)
        return self

    def read(self, name: str, out: Tensor) -> None:
        """See TensorSource.read.

        Raises:
            ModelRefused: another process has changed the file.
        """
        tensor = self._tensors[name]
        _read_rows(self._files[tensor.file], tensor, self._order(name), out if out.dim() > 1 else out[:, None])

    def group_type(self, name: str) -> TensorType | None:
        """See TensorSource.group_type."""
        type = self._tensors[name].type
        return type if type.is_grouped else None

    def read_groups(self, *names: str) -> GroupedWeight:
        """See TensorSource.read_groups.

        Raises:
            ModelRefused: another process has changed a file.
        """
        tensors = [self._tensors[name] for name in names]
        ends = list(accumulate(tensor.shape[0] for tensor in tensors))
        row_bytes = (tensors[0].end - tensors[0].begin) // tensors[0].shape[0]
        # By numpy, which copies in this thread: beside other programs torch waits for all of its threads each time.
        rows = np.empty((ends[-1], row_bytes), np.uint8)
        for name, tensor, end in zip(names, tensors, ends, strict=True):
            file, out = self._files[tensor.file], rows[end - tensor.shape[0] : end]
            stored, order = file.view(tensor.begin, tensor.end).view(out.shape).numpy(), self._order(name)
            if order is None:
                np.copyto(out, stored)
            else:
                np.take(stored, order.numpy(), axis=0, out=out, mode="clip")  # the other modes copy twice
            file.drop(tensor.begin, tensor.end)
        return GroupedWeight(tensors[0].type, torch.from_numpy(rows))

    def _order(self, name: str) -> Tensor | None:
        """Return where each row of a tensor stands in the file; None: in its place."""
        if not self._pair_size or name.split(".")[-2] not in _ROTATED:
            return None
        # Each head has pair after pair in the file; the decoder wants all first numbers of pairs, then all second.
        pairs = torch.arange(self._tensors[name].shape[0]).view(-1, self._pair_size // 2, 2)
        return pairs.transpose(1, 2).flatten()


def _read_rows(file: MappedFile, tensor: GgufTensor, order: Tensor | None, out: Tensor) -> None:
    """Fill `out` with the rows of a matrix, or a column from a vector; `order` has the place of each row."""
    num_rows = tensor.shape[0]
    stored = file.view(tensor.begin, tensor.end).view(num_rows, -1)
    step, row_bytes = max(1, _STEP_WEIGHTS * num_rows // tensor.num_weights), stored.shape[1]
    num_held = max(step, _HELD_BYTES // row_bytes)
    for held in _pieces(range(num_rows), num_held):
        for some in _pieces(held, step):
            part = slice(some.start, some.stop)
            raw = stored[part] if order is None else stored.index_select(0, order[part])
            out[part].copy_(decode(tensor.type.name, raw))
        places = torch.arange(held.start, held.stop) if order is None else order[held.start : held.stop]
        first, last = int(places.min()), int(places.max())
        file.drop(tensor.begin + first * row_bytes, tensor.begin + (last + 1) * row_bytes)


def _pieces(rows: range, size: int) -> Iterator[range]:
    """Yield parts of at most `size` rows."""
    for begin in range(rows.start, rows.stop, size):
        yield range(begin, min(begin + size, rows.stop))
