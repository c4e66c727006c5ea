"""Refuses a model before anything listens."""

from __future__ import annotations

from pathlib import Path

from app.config import ModelConfig
from app.models.hf_config import inspect
from app.models.spec import ModelSpec
from app.text.chat_template import ChatTemplate
from app.text.placeholder import load_tokenizer


def check_model(model: ModelConfig) -> ModelSpec:
    """Check all that can be seen without reading weights: spec, tensor headers, tokenizer, chat template. No torch.

    Raises:
        ModelRefused, ConfigurationError: one line says what is wrong and what to do.
    """
    checkpoint, spec = inspect(model)
    template = None if model.chat_template is None else Path(model.chat_template)
    ChatTemplate.load(checkpoint.folder, load_tokenizer(checkpoint.folder, model.load_format), template)
    return spec
