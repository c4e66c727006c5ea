"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.expert_names import ExpertNames
from app.checkpoint.fields import Fields
from app.checkpoint.spec import LayerSpec, ModelSpec
from app.checkpoint.specs.decoder_fields import read_decoder
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.mixtures.expert_fields import STACKED, read_experts, with_experts
from app.checkpoint.specs.rope_fields import read_rope
from app.checkpoint.tensor_names import TensorNames

MIXTRAL_NAMES = TensorNames(
    modules={"mlp.gate": "block_sparse_moe.gate"},
    experts=ExpertNames(
        gate="block_sparse_moe.experts.*.w1.weight",
        up="block_sparse_moe.experts.*.w3.weight",
        down="block_sparse_moe.experts.*.w2.weight",
    ),
    other=STACKED,
)
_MAX_POSITION = 131072
_COUNT = "num_local_experts"


def read_mixtral(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Mixtral model."""
    rope = read_rope(fields, fields.integer("max_position_embeddings", _MAX_POSITION), theta=1e6)
    spec = read_decoder(fields, given, max_position=_MAX_POSITION, kv_heads=8, eps=1e-5, rope=rope)
    window = None if fields.config.get("sliding_window") is None else fields.integer("sliding_window")
    experts = read_experts(fields, _COUNT, spec.intermediate_size, count=8, per_token=2)
    spec = replace(spec, layers=(LayerSpec(window),) * spec.num_layers)
    return with_experts(fields, _COUNT, spec, replace(experts, is_normalized=True), [True] * spec.num_layers)
