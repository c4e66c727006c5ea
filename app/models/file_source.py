"""Reads the weights of a model from its files, whatever their format."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from app.checkpoint.model_files import ModelFiles
from app.checkpoint.tensor_types import TensorType
from app.kernels.ops import GroupedWeight
from app.models.gguf.gguf_rows import copy_rows, read_rows
from app.models.loader import TensorSource
from app.models.mapped_file import MappedFile, map_files


class FileSource(ExitStack, TensorSource):
    """A TensorSource for the model's files, which are mapped into memory. Use as a context manager.

    Raises:
        ModelRefused: on entry, a file cannot be opened, or was changed since its header was read; on reading, the same.
    """

    def __init__(self, files: ModelFiles) -> None:
        super().__init__()
        self._tensors, self._states, self._type_of = files.tensors or {}, files.states, files.stored_type
        self._files: dict[Path, MappedFile] = {}

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

    def group_type(self, name: str) -> TensorType | None:
        return self._type_of(name)

    def read_groups(self, *names: str) -> GroupedWeight:
        tensors = [self._tensors[name] for name in names]
        ends = list(accumulate(tensor.shape[0] for tensor in tensors))
        row_bytes = (tensors[0].end - tensors[0].begin) // tensors[0].shape[0]
        rows = np.empty((ends[-1], row_bytes), np.uint8)
        for tensor, end in zip(tensors, ends, strict=True):
            copy_rows(self._files[tensor.file], tensor, rows[end - tensor.shape[0] : end])
        return GroupedWeight(tensors[0].type, torch.from_numpy(rows))
