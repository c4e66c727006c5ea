"""Inspects a model, whatever its files are: all that needs neither weights nor torch is read and checked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from app.checkpoint.checkpoint_folder import readable
from app.checkpoint.folder_model import read_folder
from app.checkpoint.gguf.gguf_model import read_gguf
from app.checkpoint.model_files import ModelFiles
from app.checkpoint.names import resolve
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused


def inspect(settings: ModelConfig) -> ModelFiles:
    """Inspect the configured model. Blocks, and downloads what is not there.

    Raises:
        ModelRefused: the model cannot be served; the message says why and what to do. Of a model of the hub it is
            raised before its weights are downloaded, if its headers say so.
    """
    path = resolve(settings.model, settings.revision, check=partial(inspect_headers, settings))
    return inspect_at(path, settings)


def inspect_headers(settings: ModelConfig, path: Path) -> ModelFiles:
    """Inspect the configured model at `path`; the weights of a folder may be missing. See `inspect`."""
    has_weights = path.is_file() or any(path.glob("*.safetensors"))
    return inspect_at(path, settings if has_weights else replace(settings, load_format="dummy"))


def inspect_at(path: Path, settings: ModelConfig) -> ModelFiles:
    """Inspect the configured model at `path`, a folder or one of its GGUF files; see `inspect`."""
    with readable(path):
        files = read_gguf(path, settings) if path.is_file() else read_folder(path, settings)
    longest = files.spec.max_position
    if settings.max_model_len is not None and settings.max_model_len > longest:
        raise ModelRefused(
            f"max_model_len is {settings.max_model_len}; {settings.model} supports at most {longest} tokens.",
            param="max_model_len",
        )
    return files
