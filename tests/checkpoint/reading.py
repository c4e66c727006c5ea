"""Reads configurations without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.hf_config import read_model
from app.checkpoint.inspection import inspect_headers
from app.checkpoint.names import resolve
from app.checkpoint.spec import ModelSpec
from app.config.settings import Config
from app.contract.errors import ModelRefused


def read_spec(checkpoint: Checkpoint, dtype: str = "auto") -> ModelSpec:
    """The spec of a checkpoint."""
    return read_model(checkpoint, dtype)[1]


def spec_of(config: dict[str, Any], dtype: str = "auto", generation: dict[str, Any] | None = None) -> ModelSpec:
    """The spec of a config.json without weights."""
    return read_spec(Checkpoint(Path("model"), config, generation or {}, None, "0"), dtype)


def planned_spec(config: Config) -> ModelSpec:
    """The spec of a configured model, whose weights may be missing, as `quire plan` reads it."""
    return inspect_headers(config.model, resolve(config.model.model, config.model.revision)).spec


def windows(spec: ModelSpec) -> tuple[int | None, ...]:
    """The sliding window of each layer."""
    return tuple(layer.window for layer in spec.layers)


def version_5(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration as transformers 5 saves it."""
    new = {name: value for name, value in config.items() if name not in ("rope_theta", "rope_scaling", "torch_dtype")}
    scaling = config.get("rope_scaling") or {}
    rope = {"rope_type": scaling.get("type", "default"), **scaling, "rope_theta": config.get("rope_theta", 1e4)}
    return new | {"rope_parameters": rope, "dtype": config["torch_dtype"], "transformers_version": "5.0.0"}


def assert_rejected(config: dict[str, Any], *words: str) -> None:
    """Assert that the configuration is rejected by one line with these words."""
    with pytest.raises(ModelRefused) as rejection:
        spec_of(config)
    assert "\n" not in rejection.value.message and rejection.value.param == "model"
    assert all(word in rejection.value.message for word in ("config.json", *words)), rejection.value.message
