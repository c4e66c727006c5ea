"""Inspects a model in GGUF files."""

from __future__ import annotations

from pathlib import Path

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.gguf.gguf_spec import find_gguf_tensors, read_gguf_pooling, read_gguf_spec
from app.checkpoint.model_files import GGUF, ModelFiles
from app.config.settings import ModelConfig


def read_gguf(file: Path, settings: ModelConfig) -> ModelFiles:
    """Read the model in `file`, or in all parts of which it is one. Blocks.

    Raises:
        ModelRefused: see GgufFiles.open, read_gguf_spec, find_gguf_tensors and read_gguf_pooling.
        OSError: a file cannot be read.
    """
    opened = GgufFiles.open(file)
    spec = read_gguf_spec(opened, settings.dtype, settings.max_model_len)
    return ModelFiles(
        format=GGUF,
        path=opened.metadata.file,
        names=opened.names,
        revision=opened.revision,
        created=opened.created,
        spec=spec,
        pooling=read_gguf_pooling(opened.metadata),
        tensors=find_gguf_tensors(spec, opened),
        states=opened.states,
        matrix_types=tuple(opened.matrix_types),
        text=opened.metadata,
    )
