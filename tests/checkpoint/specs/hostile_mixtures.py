"""Crafted mixtures of experts: each field of each family wrong in several ways, and tensors that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoint.specs import published_mixtures as published
from tests.checkpoint.specs.hostile_configs import COUNTS, FLAGS, NAN, TINY, Wrong, crafted
from tests.checkpoints import tiny

_LARGE: tuple[Any, ...] = (2**63, [8])
_LAYERS: tuple[Any, ...] = ("0", {"0": 1}, [1.5], ["first"], [[]], [True], [-1], "", 0, False)

_WRONG: Wrong = {
    "mixtral": (
        published.MIXTRAL_8X7B,
        {
            "num_local_experts": (*COUNTS, *_LARGE), "num_experts_per_tok": (*COUNTS, 9, 10**9),
            "hidden_act": ("gelu", "relu", 3), "sliding_window": ("wide", 0, -1, 2.5),
            "intermediate_size": (*COUNTS, None, *_LARGE),
        },
    ),
    "qwen 2 moe": (
        published.QWEN_15_MOE_A27B,
        {
            "moe_intermediate_size": (*COUNTS, *_LARGE), "shared_expert_intermediate_size": COUNTS,
            "num_experts": (*COUNTS, 3), "norm_topk_prob": FLAGS, "qkv_bias": FLAGS,
            "mlp_only_layers": _LAYERS, "hidden_act": ("gelu_pytorch_tanh",),
        },
    ),
    "qwen 3 moe": (
        published.QWEN_3_30B_A3B,
        {
            "num_experts": (*COUNTS, 2**31, 2084, 7), "num_experts_per_tok": (*COUNTS, 129),
            "decoder_sparse_step": (*COUNTS, [2]), "mlp_only_layers": _LAYERS, "norm_topk_prob": FLAGS,
            "moe_intermediate_size": COUNTS, "use_sliding_window": FLAGS, "attention_bias": FLAGS,
        },
    ),
    "granite moe": (
        published.GRANITE_31_3B_A800M,
        {
            "num_local_experts": (*COUNTS, 10**6), "num_experts_per_tok": (*COUNTS, 41),
            "shared_intermediate_size": ("8", -1, 2.5), "residual_multiplier": ("all", 0, -1.0, NAN, *TINY, 1e19),
            "logits_scaling": TINY, "embedding_multiplier": TINY, "attention_multiplier": TINY,
            "hidden_act": ("gelu",),
        },
    ),
}  # fmt: skip

HOSTILE_MIXTURES = crafted(_WRONG)
"""The configurations, and the field that the error must name."""

_COUNT = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1}
_LAYER = "model.layers.0."
_FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "mixtral": (
        "Mixtral", _COUNT,
        ("block_sparse_moe.gate.weight", "block_sparse_moe.experts.0.w1.weight",
         "block_sparse_moe.experts.3.w2.weight"),
    ),
    "qwen 2 moe": (
        "Qwen2Moe", {"num_hidden_layers": 1},
        ("mlp.experts.5.down_proj.weight", "mlp.shared_expert.up_proj.weight", "mlp.shared_expert_gate.weight"),
    ),
    "qwen 3 moe": (
        "Qwen3Moe", {"num_hidden_layers": 1},
        ("mlp.gate.weight", "mlp.experts.0.gate_proj.weight", "mlp.experts.2.up_proj.weight"),
    ),
    "granite moe": (
        "GraniteMoe", _COUNT | {"residual_multiplier": 0.5},
        ("block_sparse_moe.router.layer.weight", "block_sparse_moe.input_linear.weight",
         "block_sparse_moe.output_linear.weight"),
    ),
}  # fmt: skip
_DAMAGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda tensor: None,
    "transposed": lambda tensor: tensor.transpose(-1, -2).contiguous(),
    "short": lambda tensor: tensor[..., :-1].contiguous(),
    "one more": lambda tensor: torch.cat((tensor, tensor[:1])),
    "empty": lambda tensor: tensor[:0],
    "flat": lambda tensor: tensor.flatten(),
    "deep": lambda tensor: tensor[None],
    "bytes": lambda tensor: tensor.to(torch.int8),
    "doubles": lambda tensor: tensor.double(),
}
ADDED_TENSORS = (
    ("mixtral", "block_sparse_moe.experts.4.w1.weight"), ("mixtral", "block_sparse_moe.gate.bias"),
    ("qwen 2 moe", "mlp.experts.6.up_proj.weight"), ("qwen 2 moe", "mlp.shared_expert_gate.bias"),
    ("qwen 3 moe", "mlp.experts.0.gate_proj.bias"), ("qwen 3 moe", "mlp.gate.e_score_correction_bias"),
    ("granite moe", "block_sparse_moe.router.layer.bias"), ("granite moe", "block_sparse_moe.input_linear.bias"),
)  # fmt: skip
"""Families, and tensors that they do not have."""
_NO_NUMBERS = {"no numbers": lambda tensor: torch.full_like(tensor, torch.nan)}

HOSTILE_TENSORS = {
    f"{family}: {tensor} {damage}": (family, f"{_LAYER}{tensor}", damage)
    for family, (_, _, tensors) in _FAMILIES.items()
    for tensor in tensors
    for damage in _DAMAGES
}
"""The family, the stored name of the tensor, and what is done to it, as `write_damaged` takes them."""


def write_damaged(folder: Path, family: str, name: str, damage: str) -> None:
    """Write a tiny model of which one tensor is damaged."""
    architecture, fields, _ = _FAMILIES[family]
    source = tiny(architecture, **fields)
    for file in source.glob("*.json"):
        shutil.copy(file, folder)
    tensors = load_file(source / "model.safetensors")
    changed = (_DAMAGES | _NO_NUMBERS)[damage](tensors.pop(name))
    save_file(tensors if changed is None else tensors | {name: changed}, folder / "model.safetensors")


def write_added(folder: Path, family: str, name: str) -> None:
    """Write a tiny model with one tensor more in its layer."""
    architecture, fields, _ = _FAMILIES[family]
    source = tiny(architecture, **fields)
    for file in source.glob("*.json"):
        shutil.copy(file, folder)
    save_file(
        load_file(source / "model.safetensors") | {f"{_LAYER}{name}": torch.ones(4)}, folder / "model.safetensors"
    )


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write a folder that has only a config.json."""
    (folder / "config.json").write_text(json.dumps(config))
