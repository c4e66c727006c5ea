"""Tiny models with random weights, made and saved by transformers: one for each kind of architecture."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    GraniteMoeHybridConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    SmolLM3Config,
)

from tests.checkpoints import write_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 307, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
MULTIPLIERS = {
    "embedding_multiplier": 3.7, "residual_multiplier": 0.22, "attention_multiplier": 0.11, "logits_scaling": 6.0,
}  # fmt: skip
# Six pairs of the eight in a head turn.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.4, 1.6, 2.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
}
HYBRID = SHAPE | MULTIPLIERS | {
    "num_local_experts": 0, "layer_types": ["full_attention"] * 2, "shared_intermediate_size": 80, "mamba_n_heads": 4,
    "mamba_expand": 2, "mamba_d_head": 32,
}  # fmt: skip


def config_of(name: str) -> PreTrainedConfig:
    """The configuration of a model; all that can differ from a plain Llama does."""
    match name:
        case "phi3":
            return Phi3Config(**SHAPE, sliding_window=5, tie_word_embeddings=False)
        case "phi4-mini":
            return Phi3Config(
                **SHAPE, rope_parameters=LONGROPE, original_max_position_embeddings=32, tie_word_embeddings=True
            )
        case "smollm3":
            return SmolLM3Config(**SHAPE | {"num_hidden_layers": 5}, attention_bias=True, mlp_bias=True)
        case "smollm3-window":
            given = SHAPE | {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]}
            return SmolLM3Config(**given, use_sliding_window=True, sliding_window=5)
        case "granite":
            return GraniteConfig(**SHAPE | MULTIPLIERS, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
        case "granite-hybrid":
            return GraniteMoeHybridConfig(**HYBRID, position_embedding_type="rope", tie_word_embeddings=True)
        case "granite-hybrid-nope":
            return GraniteMoeHybridConfig(**HYBRID, position_embedding_type=None, attention_bias=True)
    raise AssertionError(name)


NAMES = (
    "phi3", "phi4-mini", "smollm3", "smollm3-window", "granite", "granite-hybrid", "granite-hybrid-nope",
)  # fmt: skip


@cache
def saved(name: str, dtype: torch.dtype = torch.float32) -> tuple[Path, PreTrainedModel]:
    """The folder of a model, with a tokenizer, and the model itself, in float32."""
    return save(name, config_of(name), dtype)


def save(
    name: str, config: PreTrainedConfig, dtype: torch.dtype = torch.float32, **how: Any
) -> tuple[Path, PreTrainedModel]:
    """Make and save a model, see `saved`; of experts, the first two are equal, so that their scores are ties."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **how).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in key:
                noise = 1.0 + 0.2 * noise
            elif key.endswith(".bias"):
                noise = 0.3 * noise
            elif "embed_tokens" not in key:
                noise *= (2.0 if "q" in key.split(".")[-2] or "k_proj" in key else 1.0) / tensor.shape[-1] ** 0.5
            if tensor.dim() == 3 or "router" in key or "mlp.gate." in key:
                noise[1] = noise[0]
            tensor.copy_(noise.to(dtype))
    folder = Path(tempfile.mkdtemp(prefix=f"quire-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    write_tokenizer(folder)
    return folder, model.float()
