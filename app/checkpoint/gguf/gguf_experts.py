"""Mixtures of experts in GGUF files. Each function adds those of one family."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.fields import Fields
from app.checkpoint.gguf.gguf_extras import add_granite
from app.checkpoint.gguf.gguf_metadata import decimal
from app.checkpoint.spec import ExpertSpec, ModelSpec, RouterScores
from app.checkpoint.specs.mixtures.expert_fields import read_experts, with_experts

COUNT = "expert_count"
_OF_ONE_EXPERT = ("ffn_gate", "ffn_up", "ffn_down")  # before its number
_FUSED = ".ffn_gate_up_exps."
_SOFTMAX = (0, 1)  # of expert_gating_func; 0: the file does not say it


def add_mixtral(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec of a Llama, or of a Mixtral if the file has experts."""
    if not fields.config.get(COUNT):
        return spec
    experts = replace(_read(fields, spec), is_normalized=True)
    return _with_experts(replace(spec, architecture="MixtralForCausalLM"), fields, experts)


def add_qwen2_moe(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with experts, and the shared one with its gate."""
    experts = _read(fields, spec)
    shared_width = fields.integer("expert_shared_feed_forward_length", experts.width)
    return _with_experts(spec, fields, replace(experts, shared_width=shared_width, has_shared_gate=True))


def add_qwen3_moe(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with experts; files do not say that the scores of the chosen are divided by their sum."""
    return _with_experts(spec, fields, replace(_read(fields, spec), is_normalized=True))


def add_granite_moe(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """Return the spec with Granite's multipliers and experts."""
    shared_width = fields.integer("expert_shared_feed_forward_length", 0, low=0)
    experts = replace(_read(fields, spec), scores=RouterScores.CHOSEN_SOFTMAX, shared_width=shared_width)
    return _with_experts(add_granite(spec, fields), fields, experts)


def check_expert_names(file: Path, names: Iterable[str]) -> None:
    """Refuse files that store experts in other ways than as one tensor of each kind for all of a layer.

    Raises:
        ModelRefused: the message says how they are stored.
    """
    for name in names:
        module, number = [*name.split("."), "", "", "", ""][2:4]
        is_one = module in _OF_ONE_EXPERT and number.isdecimal()
        how = "each expert in tensors of its own, as in old files" if is_one else ""
        how = "gates and ups of experts in one tensor" if _FUSED in name else how
        if how:
            raise rejected(
                f"{file} has {how} ({name:.80}), which is not supported; take a file with ffn_gate_exps and "
                "ffn_up_exps, or the model's folder."
            )


def _read(fields: Fields, spec: ModelSpec) -> ExpertSpec:
    gating = fields.integer("expert_gating_func", 0, low=0)
    if gating not in _SOFTMAX:
        raise fields.rejection("expert_gating_func", f"is {gating}; supported is 1 (softmax)")
    if fields.integer("expert_group_count", 1, low=0) > 1:
        raise fields.rejection("expert_group_count", "is more than 1; groups of experts are not supported")
    width = fields.integer("expert_feed_forward_length", spec.intermediate_size)
    experts = read_experts(fields, COUNT, width, chosen="expert_used_count")
    scale = fields.config.get("expert_weights_scale")
    return replace(experts, scale=decimal(fields.number("expert_weights_scale"))) if scale else experts


def _with_experts(spec: ModelSpec, fields: Fields, experts: ExpertSpec) -> ModelSpec:
    num_dense = fields.integer("leading_dense_block_count", 0, low=0)
    is_sparse = [index >= num_dense for index in range(spec.num_layers)]
    return with_experts(fields, COUNT, spec, experts, is_sparse)
