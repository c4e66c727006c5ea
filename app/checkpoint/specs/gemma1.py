"""Gemma of the first generation: a Llama with GELU, embeddings that are scaled, and wide heads."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.gemma import GEMMA_DEFAULTS, embedding_scale

GEMMA1_DEFAULTS = GEMMA_DEFAULTS | {
    "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
"""transformers' values of fields that a Gemma may lack."""


def read_gemma(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Gemma model."""
    if given.dtype == "float16":
        raise fields.rejection("dtype", "is float16, whose range is too small for a Gemma; choose --dtype bfloat16")
    if fields.config.get("use_bidirectional_attention") not in (None, False):
        raise fields.rejection(
            "use_bidirectional_attention", "is not false; supported are models whose tokens see only those before"
        )
    if fields.config.get("hidden_act") == "gelu":  # the older name of the same
        fields = Fields({**fields.config, "hidden_act": "gelu_pytorch_tanh"}, fields.where)
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given)
    return replace(
        spec,
        qkv_bias=has_bias,
        o_bias=has_bias,
        norm_offset=1.0,
        embedding_scale=embedding_scale(spec.hidden_size, spec.dtype),
        attention_scale=spec.head_dim**-0.5,
    )
