"""Reads the weights of a model from its files, whatever their format."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from app.checkpoint.model_files import ModelFiles
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import TensorType
from app.kernels.ops import StoredWeight
from app.models.gguf.gguf_rows import read_rows, row_addresses
from app.models.loader import TensorSource
from app.models.mapped_file import MappedFile, map_files


class FileSource(ExitStack, TensorSource):
    """A TensorSource for the model's files, which are mapped into memory. Use as a context manager.

    Raises:
        ModelRefused: on entry, a file cannot be opened, or was changed since its header was read; on reading, the same.
    """

    def __init__(self, files: ModelFiles) -> None:
        super().__init__()
        self._tensors, self._states = files.tensors or {}, files.states
        self._files: dict[Path, MappedFile] = {}
        self._held: list[StoredTensor] = []  # those whose rows were given away last

    def __enter__(self) -> FileSource:
        self._files = map_files((tensor.file for tensor in self._tensors.values()), self._states, self)
        return self

    def read(self, name: str, out: Tensor) -> None:
        tensor = self._tensors[name]
        if tensor.type.is_quantized or tensor.pair_rows:
            read_rows(self._files[tensor.file], tensor, out)
        else:
            self._files[tensor.file].read(tensor, out)

    def read_flat(self, name: str) -> Tensor:
        """Return a small tensor of any shape as float32 numbers [X] in host memory."""
        tensor = self._tensors[name]
        count = math.prod(tensor.shape)
        out = torch.empty(count)
        self._files[tensor.file].read(replace(tensor, shape=(count,)), out)
        return out

    def stored_type(self, name: str) -> TensorType | None:
        return self._tensors[name].type

    def stored(self, *names: str) -> StoredWeight:
        for tensor in self._held:
            self._files[tensor.file].drop(tensor.begin, tensor.end)
        self._held = [self._tensors[name] for name in names]
        rows = [row_addresses(self._files[tensor.file], tensor) for tensor in self._held]
        return StoredWeight(self._held[0].type, self._held[0].shape[1], torch.cat(rows))
