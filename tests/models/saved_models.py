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
    AutoModelForImageTextToText,
    Exaone4Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GraniteConfig,
    GraniteMoeHybridConfig,
    Ministral3Config,
    Mistral3Config,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    SeedOssConfig,
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
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
GEMMA = SHAPE | {
    "head_dim": 24, "query_pre_attn_scalar": 23, "sliding_window": 5, "attention_bias": True,
    "final_logit_softcapping": 9.0,
}  # fmt: skip
GEMMA_3 = GEMMA | {
    "num_hidden_layers": 4, "sliding_window_pattern": 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0}, "sliding_attention": PLAIN,
    },
}  # fmt: skip
MINISTRAL_3 = SHAPE | {
    "head_dim": 24, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
}  # fmt: skip
IMAGES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


def config_of(name: str) -> PreTrainedConfig:
    """The configuration of a model; all that can differ from a plain Llama does."""
    return _windowed_config(name) or _other_config(name)


def _windowed_config(name: str) -> PreTrainedConfig | None:
    match name:
        case "gemma2":
            return Gemma2Config(**GEMMA, attn_logit_softcapping=3.0)
        case "gemma3":
            return Gemma3TextConfig(**GEMMA_3)
        case "gemma3-images":
            vision = IMAGES | {"model_type": "siglip_vision_model"}
            text = GEMMA_3 | {"final_logit_softcapping": None}  # transformers has no cap beside a part for images
            return Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
        case "olmo3":
            ropes = {"full_attention": YARN, "sliding_attention": PLAIN}
            return Olmo3Config(**SHAPE | {"num_hidden_layers": 4, "sliding_window": 5, "rope_parameters": ropes})
        case "exaone4":
            return Exaone4Config(**SHAPE | {"num_hidden_layers": 4, "sliding_window": 5, "sliding_window_pattern": 2})
    return None


def _other_config(name: str) -> PreTrainedConfig:
    match name:
        case "gemma":
            return GemmaConfig(**SHAPE, head_dim=24, attention_bias=True)
        case "olmo2":
            return Olmo2Config(**SHAPE, attention_bias=True)
        case "glm4":
            return Glm4Config(**SHAPE, head_dim=24, attention_bias=True)
        case "seed-oss":
            return SeedOssConfig(**SHAPE, head_dim=24, attention_bias=True, attention_out_bias=True, mlp_bias=True)
        case "exaone4-full":
            return Exaone4Config(**SHAPE, sliding_window=None, layer_types=["full_attention"] * 2, head_dim=24)
        case "ministral3":
            return Ministral3Config(**MINISTRAL_3, sliding_window=21, tie_word_embeddings=True)
        case "ministral3-images":
            vision = IMAGES | {"model_type": "pixtral"}
            text = Ministral3Config(**MINISTRAL_3)
            return Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
        case "mistral3-images":
            vision = IMAGES | {"model_type": "pixtral"}
            return Mistral3Config(text_config=MistralConfig(**SHAPE), vision_config=vision, tie_word_embeddings=True)
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
    "phi3", "phi4-mini", "smollm3", "smollm3-window", "granite", "granite-hybrid", "granite-hybrid-nope", "gemma",
    "gemma2", "gemma3", "gemma3-images", "olmo2", "olmo3", "glm4", "seed-oss", "exaone4", "exaone4-full", "ministral3",
    "ministral3-images", "mistral3-images",
)  # fmt: skip


@cache
def saved(name: str, dtype: torch.dtype = torch.float32) -> tuple[Path, PreTrainedModel]:
    """The folder of a model, with a tokenizer, and the model itself, in float32."""
    return save(name, config_of(name), dtype)


def save(
    name: str, config: PreTrainedConfig, dtype: torch.dtype = torch.float32, **how: Any
) -> tuple[Path, PreTrainedModel]:
    """Make and save a model, see `saved`; of experts, the first two are equal, so that their scores are ties."""
    made_by = AutoModelForImageTextToText if name.endswith("-images") else AutoModelForCausalLM
    model = made_by.from_config(config, dtype=torch.float32, attn_implementation="eager", **how).eval()
    without = 0.0 if name.startswith("gemma") else 1.0  # what a norm's weight is where it changes nothing
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in key:
                noise = without + 0.2 * noise
            elif key.endswith(".bias"):
                noise = 0.3 * noise
            elif "embed_tokens" not in key and noise.dim() in (2, 3):
                noise *= (2.0 if "q" in key.split(".")[-2] or "k_proj" in key else 1.0) / tensor.shape[-1] ** 0.5
                is_of_experts = noise.dim() == 3 and "vision" not in key
                if is_of_experts or "router" in key or "mlp.gate." in key:
                    noise[1] = noise[0]
            tensor.copy_(noise.to(dtype))
    folder = Path(tempfile.mkdtemp(prefix=f"quire-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    write_tokenizer(folder)
    return folder, model.float()
