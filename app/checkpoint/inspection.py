"""Opens a model, whatever its files are: a Hugging Face folder, or GGUF files. Without torch."""

from __future__ import annotations

from pathlib import Path

from app.checkpoint.folder import Checkpoint, readable
from app.checkpoint.gguf.gguf_files import GgufFiles
from app.checkpoint.gguf.gguf_spec import find_gguf_tensors, read_gguf_spec
from app.checkpoint.hf_config import read_model
from app.checkpoint.names import resolve
from app.checkpoint.sizes import StoredType, decoded
from app.checkpoint.spec import ModelSpec
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused

ModelFiles = Checkpoint | GgufFiles


def open_files(path: Path, *, with_weights: bool = True) -> ModelFiles:
    """Open the model at `path`, a folder or one of its GGUF files; a folder may lack weights. Blocks.

    Raises:
        ModelRefused: see Checkpoint.open and GgufFiles.open; or a file cannot be read.
    """
    with readable(path):
        return GgufFiles.open(path) if path.is_file() else Checkpoint.open(path, with_weights=with_weights)


def inspect(settings: ModelConfig) -> tuple[ModelFiles, ModelSpec]:
    """Open the configured model, and check everything that needs neither weights nor torch. Blocks.

    Raises:
        ModelRefused: the model cannot be served; the message says why and what to do.
    """
    return inspect_at(resolve(settings.model, settings.revision), settings)


def inspect_at(path: Path, settings: ModelConfig) -> tuple[ModelFiles, ModelSpec]:
    """Inspect the configured model, whose files are at `path`; see `inspect`."""
    files = open_files(path, with_weights=settings.load_format != "dummy")
    if isinstance(files, GgufFiles):
        spec = read_gguf_spec(files, settings.dtype, settings.max_model_len)
    else:
        files, spec = read_model(files, settings.dtype, settings.max_model_len)
    if settings.max_model_len is not None and settings.max_model_len > spec.max_position:
        raise ModelRefused(
            f"max_model_len is {settings.max_model_len}; {settings.model} supports at most {spec.max_position} tokens.",
            param="max_model_len",
        )
    return files, spec


def stored_type_of(files: ModelFiles, spec: ModelSpec) -> StoredType:
    """Return what gives the type of a matrix that kernels may use as the files store it; None for others."""
    if not isinstance(files, GgufFiles):
        return decoded
    tensors = find_gguf_tensors(spec, files)
    return lambda name: tensors[name].type if tensors[name].type.is_grouped else None
