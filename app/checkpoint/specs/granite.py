"""Granite 3 and 4: multipliers of embeddings, attention, what layers add, and logits."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import NO_ROPE, ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder
from app.checkpoint.specs.family import Given


def read_granite(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Granite model."""
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given, max_position=2048)
    if given.dtype == "float16" and fields.number("residual_multiplier", 1.0) != 1:
        # The residual is kept divided by its multiplier, 4 to 5 times as large: beyond the range of float16.
        raise fields.rejection("residual_multiplier", "is not 1, which float16 cannot serve; choose --dtype bfloat16")
    return replace(
        spec,
        qkv_bias=has_bias,
        o_bias=has_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0),
    )


def read_attention_layers(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Granite 4 model whose layers are all attention, but for what follows attention."""
    num_layers = fields.integer("num_hidden_layers", high=10_000)
    types = fields.config.get("layer_types") or ["mamba"] * num_layers
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.rejection("layer_types", f"must name {num_layers} layers")
    other = next((kind for kind in types if kind not in ("attention", "full_attention")), None)
    if other is not None:
        raise fields.rejection("layer_types", f"names {other!r:.80}; only layers of attention are supported")
    kind = fields.config.get("position_embedding_type")
    if kind not in (None, "rope", "nope"):
        raise fields.rejection("position_embedding_type", f"is {kind!r:.80}; supported are rope and nope")
    spec = read_granite(fields, given)
    return replace(spec, ropes=spec.ropes if kind == "rope" else (NO_ROPE,), mlp_bias=False)
