"""Granite 3 and 4 with experts: scores are the softmax of the chosen ones, and a shared expert has no gate."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.expert_names import ExpertNames
from app.checkpoint.fields import Fields
from app.checkpoint.spec import ModelSpec, RouterScores
from app.checkpoint.specs.family import Given
from app.checkpoint.specs.granite import read_attention_layers, read_granite
from app.checkpoint.specs.mixtures.expert_fields import read_experts, with_experts
from app.checkpoint.tensor_names import TensorNames

_MODULES = {
    "mlp.gate": "block_sparse_moe.router.layer",
    "mlp.shared_expert.gate_proj": "shared_mlp.input_linear",
    "mlp.shared_expert.up_proj": "shared_mlp.input_linear",
    "mlp.shared_expert.down_proj": "shared_mlp.output_linear",
    "mlp.gate_proj": "shared_mlp.input_linear",
    "mlp.up_proj": "shared_mlp.input_linear",
    "mlp.down_proj": "shared_mlp.output_linear",
}
GRANITE_MOE_NAMES = TensorNames(
    _MODULES,
    experts=ExpertNames(
        gate="block_sparse_moe.input_linear.weight",
        up="block_sparse_moe.input_linear.weight",
        down="block_sparse_moe.output_linear.weight",
    ),
    other=TensorNames(
        _MODULES | {"mlp.gate": "block_sparse_moe.router"},
        experts=ExpertNames(
            gate="block_sparse_moe.experts.gate_up_proj",
            up="block_sparse_moe.experts.gate_up_proj",
            down="block_sparse_moe.experts.down_proj",
        ),
    ),
)
_COUNT = "num_local_experts"


def read_granite_moe(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Granite 3 model with experts in every layer, with or without a shared one."""
    shared_width = fields.integer("shared_intermediate_size", 0, low=0)
    return _with_experts(fields, read_granite(fields, given), shared_width)


def read_granite_hybrid(fields: Fields, given: Given) -> ModelSpec:
    """Read the config.json of a Granite 4 model whose layers are all attention, with experts or without."""
    spec = read_attention_layers(fields, given)
    shared_width = fields.integer("shared_intermediate_size", 1024)
    if fields.integer(_COUNT, 8, low=0):
        return _with_experts(fields, spec, shared_width)
    return replace(spec, intermediate_size=shared_width)


def _with_experts(fields: Fields, spec: ModelSpec, shared_width: int) -> ModelSpec:
    experts = read_experts(fields, _COUNT, spec.intermediate_size, count=8, per_token=2)
    experts = replace(experts, scores=RouterScores.CHOSEN_SOFTMAX, shared_width=shared_width)
    return with_experts(fields, _COUNT, replace(spec, mlp_bias=False), experts, [True] * spec.num_layers)
