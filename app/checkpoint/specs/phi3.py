"""Phi-3, Phi-3.5 mini, Phi-4 and Phi-4-mini: fused tensors, partial rotary embeddings, longrope."""

from __future__ import annotations

import math
from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import LayerSpec, ModelSpec, RopeSpec
from app.checkpoint.specs.decoder_fields import read_decoder, read_head_dim
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.rope_fields import read_rotary_dim, rope_fields, rope_kind, rope_theta
from app.checkpoint.tensor_names import TensorNames

PHI3_NAMES = TensorNames(
    {
        "self_attn.q_proj": "self_attn.qkv_proj",
        "self_attn.k_proj": "self_attn.qkv_proj",
        "self_attn.v_proj": "self_attn.qkv_proj",
        "mlp.gate_proj": "mlp.gate_up_proj",
        "mlp.up_proj": "mlp.gate_up_proj",
    }
)
_MAX_POSITION = 4096
# Old checkpoints have other names for it.
_LONGROPE = ("longrope", "su", "yarn")


def read_phi3(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Phi-3 model."""
    spec = read_decoder(fields, given, max_position=_MAX_POSITION, eps=1e-5, rope=_read_rope(fields, given))
    is_windowed = fields.config.get("sliding_window") is not None
    window = fields.integer("sliding_window") if is_windowed else None
    return replace(spec, layers=(LayerSpec(window),) * spec.num_layers)


def _read_rope(fields: Fields, given: Given) -> RopeSpec:
    rope, head_dim = rope_fields(fields), read_head_dim(fields)
    plain = RopeSpec(rope_theta(fields, rope), rotary_dim=read_rotary_dim(fields, rope, head_dim))
    kind = rope_kind(rope)
    if kind == "default":
        return plain
    if kind not in _LONGROPE:
        raise fields.rejection("rope_scaling", f"has the type {kind!r:.80}; supported is longrope")
    position = fields.integer("max_position_embeddings", _MAX_POSITION)
    original = fields.integer("original_max_position_embeddings", _MAX_POSITION, low=2)
    # One choice for all sequences: transformers takes other factors once a sequence is longer than the original
    # length, and then what is cached of it is wrong.
    is_long = (given.max_model_len or position) > original
    factors = {
        name: _read_factors(rope, name, (plain.rotary_dim or head_dim) // 2) for name in ("short_factor", "long_factor")
    }
    factor = rope.number("factor", position / original)
    suggested = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return replace(
        plain,
        kind="divisors",
        original_max_position=original,
        divisors=factors["long_factor" if is_long else "short_factor"],
        attention_factor=rope.number("attention_factor", suggested),
    )


def _read_factors(rope: Fields, name: str, count: int) -> tuple[float, ...]:
    values = rope.config.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise rope.rejection(name, f"must be a list of {count} numbers")
    numbered = Fields({f"{name}[{index}]": value for index, value in enumerate(values)}, rope.where)
    return tuple(numbered.number(each) for each in numbered.config)
