"""The fields of a config.json that describe mixtures of experts, and the names of their tensors."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.expert_names import ExpertNames
from app.checkpoint.fields import Fields
from app.checkpoint.spec import Activation, ExpertSpec, ModelSpec
from app.checkpoint.tensor_names import TensorNames

# Of all layers: real models have up to 25,000, and each is three tensors to look for.
_MAX_EXPERTS = 100_000

STACKED = TensorNames(
    experts=ExpertNames(gate="mlp.experts.gate_up_proj", up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj")
)
"""Where all experts of a layer are one tensor, as transformers has them in memory."""

EXPERT_NAMES = TensorNames(other=STACKED)
"""Where each expert has tensors of its own."""


def read_experts(
    fields: Fields,
    name: str,
    width: int,
    *,
    count: int | None = None,
    per_token: int | None = None,
    chosen: str = "num_experts_per_tok",
) -> ExpertSpec:
    """Read how many experts there are, in the field `name`, and how many compute a token, in the field `chosen`.

    `count` and `per_token` are transformers' defaults.

    Raises:
        ModelRefused: a value that is not allowed.
    """
    num_experts = fields.integer(name, count, high=_MAX_EXPERTS)
    num_chosen = fields.integer(chosen, per_token)
    if num_chosen > num_experts:
        raise fields.rejection(chosen, f"is {num_chosen}; there are only {num_experts} experts")
    return ExpertSpec(num_experts, num_chosen, width)


def with_experts(fields: Fields, name: str, spec: ModelSpec, experts: ExpertSpec, is_sparse: list[bool]) -> ModelSpec:
    """Return `spec` with these experts in the layers that are sparse; `name` is the field with their number.

    Raises:
        ModelRefused: all layers together have too many, or they have another activation than silu.
    """
    if spec.activation is not Activation.SILU:
        raise fields.rejection(
            "hidden_act", f"is {spec.activation.value}; in mixtures of experts only silu is supported"
        )
    if sum(is_sparse) * experts.count > _MAX_EXPERTS:
        raise fields.rejection(
            name, f"is {experts.count}, in {sum(is_sparse)} layers; there may be {_MAX_EXPERTS:,} experts in all layers"
        )
    layers = zip(spec.layers, is_sparse, strict=True)
    return replace(
        spec,
        experts=experts if any(is_sparse) else None,
        layers=tuple(replace(layer, has_experts=has_experts) for layer, has_experts in layers),
    )


def read_sparse_layers(fields: Fields, num_layers: int) -> list[bool]:
    """Return which layers have experts: every `decoder_sparse_step`-th, but for those in `mlp_only_layers`.

    Raises:
        ModelRefused: a value that is not allowed.
    """
    step, dense = fields.integer("decoder_sparse_step", 1), fields.config.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(type(layer) is not int or layer < 0 for layer in dense):
        raise fields.rejection(
            "mlp_only_layers", f"is {dense!r:.80}; it must be a list of numbers of layers, from 0 on"
        )
    others = set(dense)
    return [layer not in others and (layer + 1) % step == 0 for layer in range(num_layers)]
