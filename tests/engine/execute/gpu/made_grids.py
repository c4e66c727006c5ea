"""Grids of attention as a GPU would have them."""

from __future__ import annotations

import torch

from app.kernels.triton.attention.attention_configs import DETERMINISTIC_SPLIT_TOKENS, Kind, attention_config
from app.kernels.triton.attention.grids import AttentionGrids

KINDS: tuple[Kind, ...] = ("decode", "pieces", "prefill")


def grids(
    num_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    *,
    processors: int = 132,
    deterministic: bool = False,
) -> AttentionGrids:
    """Grids on an H200 for a bfloat16 model, by default of the heads of Llama-3.1-8B."""
    facts = (head_dim, torch.bfloat16, torch.bfloat16, (9, 0))
    configs = [attention_config("deterministic" if deterministic else kind, *facts) for kind in KINDS]
    split_tokens = DETERMINISTIC_SPLIT_TOKENS if deterministic else None
    return AttentionGrids(num_heads // num_kv_heads, num_kv_heads, processors, *configs, split_tokens)
