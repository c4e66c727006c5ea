"""SmolLM3: some layers have no rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import NO_ROPE, LayerSpec, ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder, read_windows
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.rope_fields import read_rope

_MAX_POSITION = 32768


def read_smollm3(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a SmolLM3 model."""
    rope = read_rope(fields, fields.integer("max_position_embeddings", _MAX_POSITION), theta=2e6)
    spec = read_decoder(fields, given, max_position=_MAX_POSITION, kv_heads=4, tied=True, rope=rope)
    has_bias = fields.flag("attention_bias", False)
    has_rope = _read_rope_layers(fields, spec.num_layers)
    windows = _read_windows(fields, has_rope)
    return replace(
        spec,
        qkv_bias=has_bias,
        o_bias=has_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        ropes=(rope, NO_ROPE),
        layers=tuple(LayerSpec(*each) for each in zip(windows, (int(not each) for each in has_rope), strict=True)),
    )


def _read_rope_layers(fields: Fields, num_layers: int) -> list[bool]:
    """Return whether each layer has a rotary embedding; `no_rope_layers` says 1 where it has."""
    given = fields.config.get("no_rope_layers")
    if given is None:
        interval = fields.integer("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers or any(each not in (0, 1) for each in given):
        raise fields.rejection("no_rope_layers", f"must be a list of 0 and 1 for {num_layers} layers")
    return [bool(each) for each in given[:num_layers]]


def _read_windows(fields: Fields, has_rope: list[bool]) -> tuple[int | None, ...]:
    if not fields.flag("use_sliding_window", False) or fields.config.get("sliding_window") is None:
        return (None,) * len(has_rope)
    types = ["full_attention" if each else "sliding_attention" for each in has_rope]
    return read_windows(fields, len(has_rope), fields.integer("sliding_window"), types)
