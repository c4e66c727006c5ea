"""Llama and Mistral."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import LayerSpec, ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder
from app.checkpoint.specs.family import Given


def read_llama(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Llama model."""
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given, max_position=2048)
    return replace(spec, qkv_bias=has_bias, o_bias=has_bias, mlp_bias=fields.flag("mlp_bias", False))


def read_mistral(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Mistral model."""
    spec = read_decoder(fields, given, max_position=131072, kv_heads=8)
    is_windowed = fields.config.get("sliding_window", 4096) is not None
    window = fields.integer("sliding_window", 4096) if is_windowed else None
    return replace(spec, layers=(LayerSpec(window),) * spec.num_layers)
