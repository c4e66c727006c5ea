"""Writes GGUF files: piece by piece, so that any piece can be wrong, or the tiny models of `tests/checkpoints.py`.

Models are written as llama.cpp's converter does: names of tensors by its table, rows and norms changed as it does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.checkpoints import CHAT_TEMPLATE, SPECIAL, tiny

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_LETTERS = {U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}
GGUF_NAMES = {
    "Llama": "llama", "Mistral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Phi3": "phi3", "SmolLM3": "smollm3",
    "Granite": "granite", "Gemma": "gemma", "Gemma2": "gemma2", "Gemma3": "gemma3", "Olmo2": "olmo2", "Olmo3": "olmo2",
    "Mixtral": "llama", "Qwen2Moe": "qwen2moe", "Qwen3Moe": "qwen3moe", "GraniteMoe": "granitemoe",
    "GraniteMoeShared": "granitemoe", "Glm4": "glm4", "SeedOss": "seed_oss", "Exaone4": "exaone4",
    "Ministral3": "mistral3",
}  # fmt: skip
_ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
# Those whose rows of queries and keys are stored pair after pair, in an order that Hugging Face folders do not have.
_PERMUTED = ("llama", "smollm3", "granite", "granitemoe", "mistral3")
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "attention_factor": 1.25,
    "short_factor": [1.0, 1.125, 1.25, 1.375, 1.5, 2.0], "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
}  # fmt: skip
GGUF_MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {},
    "Qwen2": {},
    "Qwen3": {},
    "Phi3": {"sliding_window": 5, "rope_parameters": LONGROPE, "original_max_position_embeddings": 128},
    "SmolLM3": {"num_hidden_layers": 5},
    "Granite": {
        "embedding_multiplier": 3.7, "residual_multiplier": 0.22, "attention_multiplier": 0.11, "logits_scaling": 6.0,
    },
    "Gemma": {"tie_word_embeddings": True, "hidden_act": "gelu"},
    "Mixtral": {"num_local_experts": 6},
    "Qwen2Moe": {},
    "Qwen3Moe": {"norm_topk_prob": True, "num_experts_per_tok": 3},
    "GraniteMoe": {
        "num_local_experts": 5, "embedding_multiplier": 3.7, "residual_multiplier": 0.22, "attention_multiplier": 0.11,
        "logits_scaling": 6.0,
    },
    "GraniteMoeShared": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 72, "attention_multiplier": 0.11,
    },
    "Gemma2": {
        "num_hidden_layers": 4, "sliding_window": 5, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 16, "tie_word_embeddings": True,
    },
    "Gemma3": {
        "num_hidden_layers": 6, "sliding_window": 5, "query_pre_attn_scalar": 16, "tie_word_embeddings": True,
        "rope_theta": 100000.0,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "Olmo2": {},
    "Olmo3": {
        "num_hidden_layers": 4, "sliding_window": 5,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.25,
            "beta_fast": 16.0, "beta_slow": 2.0,
        },
    },
    "Glm4": {"partial_rotary_factor": 0.5},
    "SeedOss": {},
    "Exaone4": {"num_hidden_layers": 4, "sliding_window": 5},
    "Ministral3": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 32.0, "original_max_position_embeddings": 16,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
    },
}  # fmt: skip
"""Fields for `tiny(architecture, **fields)` with all that a GGUF file of the architecture can say."""
_MULTIPLIERS = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip
# The field with the number of experts, and the default of how many compute a token; the keys of widths.
_EXPERTS = {
    "Mixtral": ("num_local_experts", 2), "Qwen2Moe": ("num_experts", 4), "Qwen3Moe": ("num_experts", 8),
    "GraniteMoe": ("num_local_experts", 2), "GraniteMoeShared": ("num_local_experts", 2),
}  # fmt: skip
_WIDTH, _SHARED_WIDTH = "expert_feed_forward_length", "expert_shared_feed_forward_length"
_EXPERT_WIDTHS = {
    "Mixtral": {}, "Qwen2Moe": {"moe_intermediate_size": _WIDTH, "shared_expert_intermediate_size": _SHARED_WIDTH},
    "Qwen3Moe": {"moe_intermediate_size": _WIDTH}, "GraniteMoe": {},
    "GraniteMoeShared": {"shared_intermediate_size": _SHARED_WIDTH},
}  # fmt: skip
# Keys of a rotary embedding, by the names of a config.json.
_SCALING = {
    "rope_type": "rope.scaling.type", "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor", "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow", "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "llama_4_scaling_beta": "attention.temperature_scale",
}  # fmt: skip


def string(text: str | bytes) -> bytes:
    """Length and bytes."""
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def kind_of(value: object) -> int:
    """The type in which a Python value is written."""
    kinds = {bool: BOOL, int: U32 if not isinstance(value, int) or value >= 0 else I32, float: F32, str: STRING}
    return kinds.get(type(value), ARRAY)


def encoded(value: Any) -> bytes:
    """The bytes of a value, without its type."""
    kind = kind_of(value)
    if kind == STRING:
        return string(value)
    if kind != ARRAY:
        return struct.pack("<" + _LETTERS[kind], value)
    kind = kind_of(value[0])
    return struct.pack("<IQ", kind, len(value)) + b"".join(map(encoded, value))


def key(name: str | bytes, value: Any) -> bytes:
    """One entry of the metadata; bytes are a type and a value as they are."""
    return string(name) + (value if isinstance(value, bytes) else struct.pack("<I", kind_of(value)) + encoded(value))


def entry(name: str | bytes, sizes: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """One entry of the table of tensors; columns are the first size."""
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def gguf_bytes(
    keys: Sequence[bytes],
    entries: Sequence[bytes],
    data: bytes = b"",
    *,
    start: bytes = b"GGUF\3\0\0\0",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of these parts; `counts` are those of tensors and keys that it announces."""
    header = start + struct.pack("<QQ", *(counts or (len(entries), len(keys)))) + b"".join([*keys, *entries])
    return header + b"\0" * (-len(header) % alignment) + data


def write_gguf(
    file: Path, fields: Mapping[str, Any], tensors: Mapping[str, tuple[str, np.ndarray]], alignment: int = 32
) -> Path:
    """Write a correct file; `tensors` are (type, float32 array) or (type, uint8 array of encoded rows)."""
    entries, data = [], bytearray()
    for name, (kind, values) in tensors.items():
        number = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[number]
        is_encoded = values.dtype == np.uint8
        shape = (*values.shape[:-1], values.shape[-1] // size * block) if is_encoded else values.shape
        raw = values if is_encoded or kind == "F32" else gguf.quants.quantize(values, number)
        entries.append(entry(name, shape[::-1], int(number), len(data)))
        data += raw.tobytes()
        data += b"\0" * (-len(data) % alignment)
    keys = [key(name, value) for name, value in fields.items()]
    file.write_bytes(gguf_bytes(keys, entries, bytes(data), alignment=alignment))
    return file


def model_fields(folder: Path, architecture: str) -> dict[str, Any]:
    """The metadata of a model, from its folder."""
    config, name = json.loads((folder / "config.json").read_text()), GGUF_NAMES[architecture]
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
        "rope.dimension_count": config["head_dim"],
        **{key: config[field] for field, key in _MULTIPLIERS.items() if field in config},
    }
    if architecture in _EXPERTS:
        count, per_token = _EXPERTS[architecture]
        values |= {"expert_count": config[count], "expert_used_count": config.get("num_experts_per_tok", per_token)}
        values |= {key: config[field] for field, key in _EXPERT_WIDTHS[architecture].items()}
    if config.get("sliding_window"):
        values["attention.sliding_window"] = config["sliding_window"]
    if architecture in ("Olmo3", "Exaone4") and "attention.sliding_window" in values:
        values["attention.sliding_window_pattern"] = [bool((i + 1) % 4) for i in range(config["num_hidden_layers"])]
    if "partial_rotary_factor" in config:
        values["rope.dimension_count"] = int(config["head_dim"] * config["partial_rotary_factor"])
    rope = config.get("rope_parameters", config.get("rope_scaling", {}))
    if rope.get("rope_type") in ("linear", "yarn"):
        values |= {key: rope[name] for name, key in _SCALING.items() if name in rope}
    if "long_factor" in rope:
        values |= {
            "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
            "rope.scaling.original_context_length": config["original_max_position_embeddings"],
            "rope.scaling.attn_factor": rope["attention_factor"],
        }
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in values.items()}}


def text_fields(folder: Path) -> dict[str, Any]:
    """The metadata of a byte-level tokenizer and of a template, from a model's folder."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def stored_tensors(folder: Path, architecture: str, kind: str = "F32") -> dict[str, tuple[str, np.ndarray]]:
    """The tensors of a model, with its matrices as `kind`; rows of queries and keys as the architecture wants them."""
    config, arch = json.loads((folder / "config.json").read_text()), GGUF_NAMES[architecture]
    names = gguf.get_tensor_name_map(_ARCHITECTURES[arch], config["num_hidden_layers"])
    tensors = {}
    for name, values in _with_stacked_experts(load_file(folder / "model.safetensors")).items():
        if arch in _PERMUTED and name.split(".")[-2] in ("q_proj", "k_proj"):
            pairs = values.reshape(-1, 2, config["head_dim"] // 2, *values.shape[1:])
            values = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias")) or {"lm_head.weight": "output.weight"}[name]
        is_plain = values.ndim == 1 or "ffn_gate_inp" in stored
        tensors[stored] = ("F32" if is_plain else kind, values)
    for name in ("short_factor", "long_factor"):
        if factors := config.get("rope_parameters", {}).get(name):
            tensors[f"rope_factors_{name[:-7]}.weight"] = ("F32", np.array(factors, np.float32))
    return tensors


def _with_stacked_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with those of all experts of a layer as one, and gates apart from ups, as llama.cpp has them."""
    found: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in tensors.items():
        layer, parts = ".".join(name.split(".")[:3]), name.split(".")
        if ".experts." in name:
            module = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(parts[-2], parts[-2])
            stacks.setdefault(f"{layer}.mlp.experts.{module}.weight", {})[int(parts[-3])] = values
        elif "input_linear" in name:
            block = "mlp.shared_expert" if "shared_mlp" in name else "mlp.experts"
            for part, half in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=-2), strict=True):
                found[f"{layer}.{block}.{part}.weight"] = np.ascontiguousarray(half)
        else:
            found[name] = values[0] if name.endswith("shared_expert_gate.weight") else values
    return found | {name: np.stack([own[i] for i in range(len(own))]) for name, own in stacks.items()}


def tiny_gguf(file: Path, architecture: str = "Llama", kind: str = "F32", **fields: Any) -> Path:
    """Write the model `tiny(architecture, **fields)` as a GGUF file."""
    folder = tiny(architecture, **fields)
    metadata = model_fields(folder, architecture) | text_fields(folder)
    return write_gguf(file, metadata, stored_tensors(folder, architecture, kind))
