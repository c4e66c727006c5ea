"""The models that the benchmark `gpu` runs with random weights: their config.json alone. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.bounds import Shape

MAX_MODEL_LEN = 2048
"""Of all engines: prompt and output of every load fit."""

SHAPES = {
    "Qwen3-0.6B": Shape(28, 1024, 16, 8, 128, 3072, 151936, is_tied=True),
    "Llama-3.2-1B": Shape(16, 2048, 32, 8, 64, 8192, 128256, is_tied=True),
    "Qwen3-4B": Shape(36, 2560, 32, 8, 128, 9728, 151936, is_tied=True),
    "Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288, 151936, is_tied=False),
    "Llama-3.1-8B": Shape(32, 4096, 32, 8, 128, 14336, 128256, is_tied=False),
    "Qwen3-14B": Shape(40, 5120, 40, 8, 128, 17408, 151936, is_tied=False),
}
_SCALING = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}


def config_json(name: str, num_layers: int | None = None) -> dict[str, Any]:
    """Return a model's config.json, with fewer layers if given."""
    shape = SHAPES[name]
    family = _QWEN3 if name.startswith("Qwen3") else _LLAMA
    scaling = {} if family is _QWEN3 else {"rope_scaling": _SCALING | {"factor": 32.0 if "1B" in name else 8.0}}
    return {
        **family,
        **scaling,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": num_layers or shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.is_tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "bfloat16",
    }


def write_model(name: str, folder: Path, num_layers: int | None = None) -> Path:
    """Write a model's config.json into a folder of its name inside `folder`, which may be there; return it."""
    model = folder / (name if num_layers is None else f"{name}-{num_layers}")
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(config_json(name, num_layers)))
    return model
