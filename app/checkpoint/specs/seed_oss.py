"""Seed-OSS: a Llama whose biases are apart for queries, keys and values, and for what attention adds."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder
from app.checkpoint.specs.family import Given


def read_seed_oss(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Seed-OSS model."""
    spec = read_decoder(fields, given, max_position=524288, kv_heads=8, head_dim=128)
    return replace(
        spec,
        qkv_bias=fields.flag("attention_bias", True),
        o_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )
