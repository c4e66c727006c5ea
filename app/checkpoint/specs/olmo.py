"""OLMo 2 and 3: norms only of what blocks add, and of all queries and of all keys together."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import BlockNorms, ModelSpec, QKNorm, RopeSpec
from app.checkpoint.specs.decoder_fields import mixed_types, read_decoder, read_windows
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.layer_ropes import layers_of, read_layer_ropes

_MAX_POSITION, _THETA = 2048, 500000.0


def read_olmo2(fields: Fields, given: Given, rope: RopeSpec | None = None) -> ModelSpec:
    """Read the config.json of an OLMo 2 model; `rope` is one that is read already."""
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given, max_position=_MAX_POSITION, eps=1e-5, rope=rope)
    return replace(spec, qkv_bias=has_bias, o_bias=has_bias, block_norms=BlockNorms.AFTER, qk_norm=QKNorm.WHOLE)


def read_olmo3(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of an OLMo 3 model: three of four layers have a window."""
    position = fields.integer("max_position_embeddings", _MAX_POSITION)
    full, windowed = read_layer_ropes(fields, position, theta=_THETA, local_name="rope_theta", local_theta=_THETA)
    spec = read_olmo2(fields, given, full)
    types = mixed_types(spec.num_layers, 4)
    windows = read_windows(fields, spec.num_layers, fields.integer("sliding_window", 4096), types)
    ropes, layers = layers_of(windows, full, windowed)
    return replace(spec, ropes=ropes, layers=layers)
