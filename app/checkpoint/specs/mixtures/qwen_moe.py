"""Qwen2 and Qwen3 with experts."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.fields import Fields
from app.checkpoint.spec import ExpertSpec, LayerSpec, ModelSpec, QKNorm
from app.checkpoint.specs.decoder_fields import read_decoder, read_windows
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.mixtures.expert_fields import read_experts, read_sparse_layers, with_experts


def read_qwen2_moe(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Qwen2-MoE model: a shared expert with a gate computes every token too."""
    spec = read_decoder(fields, given, max_position=32768, kv_heads=16)
    spec = replace(spec, qkv_bias=fields.flag("qkv_bias", True), layers=_alternating_windows(fields, spec.num_layers))
    experts = _read_experts(fields, width=1408, count=60, per_token=4)
    shared_width = fields.integer("shared_expert_intermediate_size", 5632)
    return _with_experts(fields, spec, replace(experts, shared_width=shared_width, has_shared_gate=True))


def read_qwen3_moe(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Qwen3-MoE model."""
    has_bias = fields.flag("attention_bias", False)
    spec = read_decoder(fields, given, max_position=32768, kv_heads=4)
    window = _read_window(fields)
    layers = (LayerSpec(window),) * spec.num_layers
    spec = replace(spec, qkv_bias=has_bias, o_bias=has_bias, qk_norm=QKNorm.HEADS, layers=layers)
    return _with_experts(fields, spec, _read_experts(fields, width=768, count=128, per_token=8))


def _read_experts(fields: Fields, *, width: int, count: int, per_token: int) -> ExpertSpec:
    width = fields.integer("moe_intermediate_size", width)
    experts = read_experts(fields, _count_name(fields), width, count=count, per_token=per_token)
    return replace(experts, is_normalized=fields.flag("norm_topk_prob", False))


def _with_experts(fields: Fields, spec: ModelSpec, experts: ExpertSpec) -> ModelSpec:
    return with_experts(fields, _count_name(fields), spec, experts, read_sparse_layers(fields, spec.num_layers))


def _count_name(fields: Fields) -> str:
    """Return the field with the number of experts: some tools write it under the other name."""
    return "num_experts" if fields.config.get("num_experts") is not None else "num_local_experts"


def _read_window(fields: Fields) -> int | None:
    if not fields.flag("use_sliding_window", False) or fields.config.get("sliding_window", 4096) is None:
        return None
    return fields.integer("sliding_window", 4096)


def _alternating_windows(fields: Fields, num_layers: int) -> tuple[LayerSpec, ...]:
    window = _read_window(fields)
    if window is None:
        return (LayerSpec(),) * num_layers
    end = fields.integer("max_window_layers", 28, low=0)
    types = ["sliding_attention" if i % 2 == 0 and i < end else "full_attention" for i in range(num_layers)]
    return tuple(LayerSpec(each) for each in read_windows(fields, num_layers, window, types))
