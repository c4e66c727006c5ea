"""Reads the weights of GGUF files, decoded some rows at a time."""

from __future__ import annotations

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

# Weights that are decoded at once: a few MB of temporary memory, and enough for all threads.
_STEP_WEIGHTS = 1 << 19
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
        order = torch.arange(tensor.shape[0])
        if self._pair_size and name.split(".")[-2] in _ROTATED:
            # Each head has pair after pair in the file; the decoder wants all first numbers of pairs, then all second.
            order = order.view(-1, self._pair_size // 2, 2).transpose(1, 2).flatten()
        columns = part[1:] or (slice(None),)
        _read_rows(self._files[tensor.file], tensor, order[part[0]], columns[0], out if out.dim() > 1 else out[:, None])


def _read_rows(file: MappedFile, tensor: GgufTensor, order: Tensor, columns: slice, out: Tensor) -> None:
    """Fill `out` with the rows `order` of a matrix, or of a vector as a column."""
    file.check_size()
    num_rows = tensor.shape[0]
    stored = file.view(tensor.begin, tensor.end).view(num_rows, -1)
    row_bytes = stored.shape[1]
    step = max(1, _STEP_WEIGHTS * num_rows // max(1, tensor.num_weights))
    for rows, target in zip(torch.split(order, step), torch.split(out, step), strict=True):
        target.copy_(decode(tensor.type.name, stored[rows])[:, columns])
        first, last = int(rows.min()), int(rows.max())
        file.drop(tensor.begin + first * row_bytes, tensor.begin + (last + 1) * row_bytes)
