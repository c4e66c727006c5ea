"""Tiny mixtures of experts with random weights, made and saved by transformers, which computes expert after expert."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from tests.models.saved_models import HYBRID, MULTIPLIERS, SHAPE, save

_SMALL: dict[str, Any] = SHAPE | {"intermediate_size": 48}


def config_of(name: str) -> PreTrainedConfig:
    """The configuration of a model; all that can differ from a plain one does."""
    match name:
        case "mixtral":
            return MixtralConfig(**_SMALL, num_local_experts=8, num_experts_per_tok=2, sliding_window=5)
        case "qwen2-moe":
            return Qwen2MoeConfig(
                **_SMALL, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24, mlp_only_layers=[1],
                shared_expert_intermediate_size=56, use_sliding_window=True, sliding_window=5,
            )  # fmt: skip
        case "qwen3-moe":
            return Qwen3MoeConfig(
                **_SMALL | {"num_hidden_layers": 4}, num_experts=8, num_experts_per_tok=4, moe_intermediate_size=40,
                norm_topk_prob=True, decoder_sparse_step=2, head_dim=24, attention_bias=True, tie_word_embeddings=True,
            )  # fmt: skip
        case "qwen3-moe-window":
            return Qwen3MoeConfig(
                **_SMALL, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=24, use_sliding_window=True,
                sliding_window=5, head_dim=16,
            )  # fmt: skip
        case "granite-moe":
            return GraniteMoeConfig(**_SMALL | MULTIPLIERS, num_local_experts=6, num_experts_per_tok=3)
        case "granite-moe-shared":
            given = _SMALL | MULTIPLIERS | {"shared_intermediate_size": 72, "attention_bias": True}
            return GraniteMoeSharedConfig(**given, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True)
        case "granite-hybrid-moe":
            given = HYBRID | {"intermediate_size": 24, "num_local_experts": 7, "num_experts_per_tok": 4}
            return GraniteMoeHybridConfig(**given, position_embedding_type="rope")
    raise AssertionError(name)


NAMES = (
    "mixtral", "qwen2-moe", "qwen3-moe", "qwen3-moe-window", "granite-moe", "granite-moe-shared", "granite-hybrid-moe",
)  # fmt: skip


@cache
def saved_mixture(name: str, dtype: torch.dtype = torch.float32) -> tuple[Path, PreTrainedModel]:
    """The folder of a model, with a tokenizer, and the model itself, in float32; the first two experts are equal."""
    return save(name, config_of(name), dtype, experts_implementation="eager")
