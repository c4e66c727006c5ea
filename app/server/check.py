"""Refuses a model before anything listens."""

from __future__ import annotations

from app.checkpoint.hf_config import inspect
from app.checkpoint.spec import ModelSpec
from app.config.settings import ModelConfig
from app.text.frontend import TextFrontend


def check_model(settings: ModelConfig) -> tuple[ModelSpec, TextFrontend]:
    """Check all that can be seen without reading weights: spec, tensor headers, tokenizer, chat template. No torch.

    Returns:
        What was read: the model's shape and its text side.

    Raises:
        ModelRefused, ConfigurationError: one line says what is wrong and what to do.
    """
    checkpoint, spec = inspect(settings)
    return spec, TextFrontend.load(settings, checkpoint.folder)
