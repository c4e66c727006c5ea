"""What a model's files say before its weights are read, whatever their format: all that other rooms know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.checkpoint.file_state import FileState
from app.checkpoint.spec import ModelSpec
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import TensorType
from app.checkpoint.text_files import TextFiles
from app.contract.requests import PoolingKind

SAFETENSORS, GGUF = "safetensors", "gguf"
"""The formats, as /v1/models calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """An inspected model. Any thread. Each format has one function that makes it, see `inspection`.

    Attributes:
        format: SAFETENSORS or GGUF.
        path: the folder or the first file, as messages name it.
        names: what the model may be called, without its owner.
        revision: a hash that is another one when the files are.
        created: when the model was last changed, in seconds since 1970.
        spec: the shape of the model.
        tensors: where those of `ModelSpec.tensor_shapes` are, and tensors that only some formats have, such as scales
            of a KV cache; None for a folder of which random weights are wanted.
        states: of the files with tensors, when their headers were read.
        matrix_types: the types that GGUF files have for matrices, the one of most weights first.
        is_text_only: whether the files have a part for images, too, which is not loaded.
        pooling: how embeddings are pooled by default.
        answer_tokens: how long answers may be, by the files; None if they do not say it.
        text: what tokenizer and chat template are made of.
    """

    format: str
    path: Path
    names: tuple[str, ...]
    revision: str
    created: int
    spec: ModelSpec
    tensors: Mapping[str, StoredTensor] | None
    states: Mapping[Path, FileState]
    matrix_types: tuple[TensorType, ...] = ()
    is_text_only: bool = False
    pooling: PoolingKind
    answer_tokens: int | None = None
    text: TextFiles

    @property
    def summary(self) -> str:
        """The format and the types of matrices, for people, and whether a part is not loaded."""
        if not self.matrix_types:
            return f"{self.format}, text only" if self.is_text_only else self.format
        return f"{self.format.upper()}, {' and '.join(kind.name for kind in self.matrix_types)}"

    @property
    def quantization(self) -> str | None:
        """The types of the matrices, if the files hold quantized weights."""
        is_quantized = any(kind.is_quantized for kind in self.matrix_types)
        return ", ".join(kind.name for kind in self.matrix_types) if is_quantized else None

    def stored_type(self, name: str) -> TensorType | None:
        """Return the type of a matrix that kernels may use as the files store it; None for others."""
        kind = self.tensors[name].type if self.tensors is not None else None
        return kind if kind is not None and kind.is_grouped else None
