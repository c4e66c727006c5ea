"""Inspects a model in the folder of a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path

from app.checkpoint.checkpoint_folder import Checkpoint, read_json
from app.checkpoint.hf_config import read_model
from app.checkpoint.model_files import SAFETENSORS, ModelFiles
from app.checkpoint.text_files import FolderText
from app.config.settings import ModelConfig
from app.contract.requests import PoolingKind


def read_folder(folder: Path, settings: ModelConfig) -> ModelFiles:
    """Read the model in `folder`; for random weights the folder may lack those of the model. Blocks.

    Raises:
        ModelRefused: see Checkpoint.open and read_model; or the file that says how to pool is damaged.
        OSError: a file cannot be read.
    """
    opened = Checkpoint.open(folder, with_weights=settings.load_format != "dummy")
    opened, spec = read_model(opened, settings.dtype, settings.max_model_len)
    return ModelFiles(
        format=SAFETENSORS,
        path=folder,
        names=opened.names,
        revision=opened.revision,
        created=opened.created,
        spec=spec,
        tensors=opened.tensors,
        states=opened.states,
        pooling=_pooling(folder),
        text=FolderText(folder, {"config.json": opened.config, "generation_config.json": opened.generation_config}),
    )


def _pooling(folder: Path) -> PoolingKind:
    """Return the last token's pooling, if the file of sentence-transformers names it; else the mean."""
    file = folder / "1_Pooling" / "config.json"
    is_last = file.exists() and read_json(file).get("pooling_mode_lasttoken") is True
    return PoolingKind.LAST if is_last else PoolingKind.MEAN
