"""Inspects a model in the folder of a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path

from app.checkpoint.checkpoint_folder import Checkpoint, read_json, rejected
from app.checkpoint.hf_config import read_model
from app.checkpoint.model_files import SAFETENSORS, ModelFiles
from app.checkpoint.specs.registry import FAMILIES
from app.checkpoint.text_files import FolderText
from app.config.settings import ModelConfig
from app.contract.requests import PoolingKind


def read_folder(folder: Path, settings: ModelConfig) -> ModelFiles:
    """Read the model in `folder`; for random weights the folder may lack those of the model. Blocks.

    Raises:
        ModelRefused: see Checkpoint.open and read_model; the file that says how to pool is damaged; or
            `max_new_tokens` is no whole number.
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
        is_text_only=FAMILIES[spec.architecture].is_text_only,
        pooling=_pooling(folder),
        answer_tokens=_answer_tokens(opened),
        text=FolderText(folder, {"config.json": opened.config, "generation_config.json": opened.generation_config}),
    )


def _answer_tokens(opened: Checkpoint) -> int | None:
    """Return the `max_new_tokens` of generation_config.json, if it has one."""
    given = opened.generation_config.get("max_new_tokens")
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        raise rejected(
            f"{opened.folder / 'generation_config.json'}: max_new_tokens is {given!r}; it must be a whole number of at "
            "least 1. Correct or remove it."
        )
    return given


def _pooling(folder: Path) -> PoolingKind:
    """Return the last token's pooling, if the file of sentence-transformers names it; else the mean."""
    file = folder / "1_Pooling" / "config.json"
    is_last = file.exists() and read_json(file).get("pooling_mode_lasttoken") is True
    return PoolingKind.LAST if is_last else PoolingKind.MEAN
