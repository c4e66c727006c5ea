"""Gemma 2 and 3, their text models: norms before and after each block, GELU, layers with windows."""

from __future__ import annotations

import struct
from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import BlockNorms, LayerSpec, ModelSpec, QKNorm, RopeSpec
from app.checkpoint.specs.decoder_fields import mixed_types, read_decoder, read_windows
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.layer_ropes import layers_of, read_layer_ropes

GEMMA_DEFAULTS = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
"""transformers' values of fields that a Gemma 2 may lack."""
GEMMA3_DEFAULTS = GEMMA_DEFAULTS | {"vocab_size": 262208, "max_position_embeddings": 131072}
"""The same for Gemma 3; config.json of its larger models says only what differs."""
_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4


def read_gemma2(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Gemma 2 model."""
    spec = _read_gemma(fields, given)
    windows = read_windows(
        fields, spec.num_layers, fields.integer("sliding_window", 4096), mixed_types(spec.num_layers, 2)
    )
    return replace(
        spec,
        layers=tuple(map(LayerSpec, windows)),
        attention_softcap=_read_cap(fields, "attn_logit_softcapping", 50.0),
        logit_softcap=_read_cap(fields, "final_logit_softcapping", 30.0),
    )


def read_gemma3(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of the text model of a Gemma 3."""
    position = fields.integer("max_position_embeddings")
    full, windowed = read_layer_ropes(
        fields, position, theta=_GLOBAL_THETA, local_name="rope_local_base_freq", local_theta=_LOCAL_THETA
    )
    spec = _read_gemma(fields, given, full)
    if fields.config.get("attn_logit_softcapping") is not None:
        raise fields.rejection("attn_logit_softcapping", "is given; a Gemma 3 has no cap of attention")
    types = mixed_types(spec.num_layers, fields.integer("sliding_window_pattern", 6))
    windows = read_windows(fields, spec.num_layers, fields.integer("sliding_window", 4096), types)
    ropes, layers = layers_of(windows, full, windowed)
    return replace(
        spec,
        ropes=ropes,
        max_position=position,  # the scaled length, also with the scaling linear
        layers=layers,
        qk_norm=QKNorm.HEADS,
        logit_softcap=_read_cap(fields, "final_logit_softcapping", None),
    )


def embedding_scale(hidden_size: int, dtype: str) -> float:
    """Return the root of the width, by which a Gemma's embeddings are multiplied, rounded to the type of the model."""
    bits = int.from_bytes(struct.pack(">f", hidden_size**0.5))
    if dtype == "bfloat16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # to the nearest, or the even one of two
    return float(struct.unpack(">f", bits.to_bytes(4))[0])


def _read_gemma(fields: Fields, given: Given, rope: RopeSpec | None = None) -> ModelSpec:
    """Read what both have; layers are all alike."""
    if given.dtype == "float16":
        raise fields.rejection("dtype", "is float16, whose range is too small for a Gemma; choose --dtype bfloat16")
    if fields.config.get("use_bidirectional_attention") not in (None, False):
        raise fields.rejection(
            "use_bidirectional_attention", "is not false; supported are models whose tokens see only those before"
        )
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given, activation="hidden_activation", rope=rope)
    return replace(
        spec,
        qkv_bias=has_bias,
        o_bias=has_bias,
        block_norms=BlockNorms.BOTH,
        norm_offset=1.0,
        embedding_scale=embedding_scale(spec.hidden_size, spec.dtype),
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def _read_cap(fields: Fields, name: str, default: float | None) -> float | None:
    """Return a cap; null in the file means none."""
    return None if fields.config.get(name, default) is None else fields.number(name, default)
