"""Checks the model before the server listens."""

from __future__ import annotations

from app.checkpoint.hf_config import inspect
from app.checkpoint.spec import ModelSpec
from app.config.settings import ModelConfig
from app.text.frontend import TextFrontend


def check_model(settings: ModelConfig) -> tuple[ModelSpec, TextFrontend]:
    """Check everything but the weights: spec, tensor headers, tokenizer, chat template. Does not load torch.

    Returns:
        The model's spec, and its text frontend.

    Raises:
        ModelRefused, ConfigurationError: the model cannot be served; the message says why and what to do.
    """
    checkpoint, spec = inspect(settings)
    return spec, TextFrontend.load(settings, checkpoint.folder)
