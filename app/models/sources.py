"""The source of a model's weights, by the format of its files."""

from __future__ import annotations

from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.inspection import ModelFiles
from app.checkpoint.spec import ModelSpec
from app.models.gguf.gguf_source import GgufSource
from app.models.loader import SafetensorsSource


def open_source(files: ModelFiles, spec: ModelSpec) -> SafetensorsSource | GgufSource:
    """Return the TensorSource of `files`, a context manager; it raises ModelRefused on entry."""
    return GgufSource(files, spec) if isinstance(files, GgufFiles) else SafetensorsSource(files)
