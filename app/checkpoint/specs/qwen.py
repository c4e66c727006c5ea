"""Qwen2 and Qwen3."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import LayerSpec, ModelSpec, QKNorm
from app.checkpoint.specs.decoder_fields import read_decoder, read_windows
from app.checkpoint.specs.family import Given


def read_qwen2(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Qwen2 model."""
    spec = read_decoder(fields, given, max_position=32768, kv_heads=32)
    return replace(spec, qkv_bias=True, layers=_layers(fields, spec.num_layers))


def read_qwen3(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Qwen3 model."""
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given, max_position=32768, kv_heads=32, head_dim=128)
    layers = _layers(fields, spec.num_layers)
    return replace(spec, qkv_bias=has_bias, o_bias=has_bias, qk_norm=QKNorm.HEADS, layers=layers)


def _layers(fields: Fields, num_layers: int) -> tuple[LayerSpec, ...]:
    if not fields.flag("use_sliding_window", False) or fields.config.get("sliding_window", 4096) is None:
        return (LayerSpec(),) * num_layers
    window = fields.integer("sliding_window", 4096)
    first = fields.integer("max_window_layers", 28, low=0)
    types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    return tuple(LayerSpec(each) for each in read_windows(fields, num_layers, window, types))
