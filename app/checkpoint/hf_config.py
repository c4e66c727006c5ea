"""Reads a Hugging Face config.json into a `ModelSpec`, and rejects unsupported models by the name of the field.

Without torch, so that an unsupported model is rejected before slow imports.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.checkpoint.folder import Checkpoint, TensorEntry, rejected
from app.checkpoint.names import resolve
from app.checkpoint.spec import ModelSpec, RopeSpec
from app.config.settings import ModelConfig
from app.contract.errors import InvalidValue, ModelRefused
from app.contract.sampling_params import SamplingDefaults, SamplingParams

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def inspect(settings: ModelConfig) -> tuple[Checkpoint, ModelSpec]:
    """Open the configured model, and check everything that needs neither weights nor torch. Blocks.

    Raises:
        ModelRefused: the model cannot be served; the message says why and what to do.
    """
    path = resolve(settings.model, settings.revision)
    checkpoint = Checkpoint.open(path, with_weights=settings.load_format != "dummy")
    spec = read_spec(checkpoint, settings.dtype)
    if settings.max_model_len is not None and settings.max_model_len > spec.max_position:
        raise ModelRefused(
            f"max_model_len is {settings.max_model_len}; {settings.model} supports at most {spec.max_position} tokens.",
            param="max_model_len",
        )
    return checkpoint, spec


# Transformers' defaults of fields that old config.json files do not contain.
_KV_HEADS = {"MistralForCausalLM": 8, "Qwen2ForCausalLM": 32, "Qwen3ForCausalLM": 32}
_HEAD_DIM = {"Qwen3ForCausalLM": 128}
_MAX_POSITION = {
    "LlamaForCausalLM": 2048,
    "MistralForCausalLM": 131072,
    "Qwen2ForCausalLM": 32768,
    "Qwen3ForCausalLM": 32768,
}


class _Fields:
    """Reads typed fields of a config.json; every error names the field."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def integer(self, name: str, default: int | None = None, low: int = 1, high: int = 2**31) -> int:
        value = default if self.config.get(name) is None else self.config[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.rejection(name, f"is {value!r}; it must be an integer between {low} and {high}")
        return value

    def number(self, name: str, default: float | None = None, *, above: float = 0.0, high: float = 1e18) -> float:
        value = default if self.config.get(name) is None else self.config[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not above < value <= high:
            raise self.rejection(name, f"is {value!r}; it must be a number above {above:g} and at most {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise self.rejection(name, f"is {value!r}; it must be true or false")
        return value

    def rejection(self, name: str, what: str) -> ModelRefused:
        return rejected(f"{self.where}: {name} {what}.")


def read_spec(checkpoint: Checkpoint, dtype: str = "auto") -> ModelSpec:
    """Read the spec of a checkpoint and, if it has weights, compare all names and shapes of tensors with the spec.

    Raises:
        ModelRefused: the architecture or one of its features is not supported; or a tensor is missing, or has a
            different shape or an unsupported type.
    """
    spec = _read_config(checkpoint, dtype)
    if checkpoint.tensors is not None:
        _check_tensors(spec, checkpoint.tensors, checkpoint.folder)
    return spec


def _read_config(checkpoint: Checkpoint, dtype: str) -> ModelSpec:
    fields = _Fields(checkpoint.config, str(checkpoint.folder / "config.json"))
    architecture = _architecture(fields)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", _KV_HEADS.get(architecture, heads))
    if heads % kv_heads:
        raise fields.rejection("num_key_value_heads", f"is {kv_heads}; it must divide num_attention_heads, {heads}")
    head_dim = fields.integer("head_dim", _HEAD_DIM.get(architecture, hidden // heads), high=4096)
    if head_dim % 2:
        raise fields.rejection("head_dim", f"is {head_dim}; it must be even")
    num_layers = fields.integer("num_hidden_layers", high=10_000)
    position = fields.integer("max_position_embeddings", _MAX_POSITION[architecture])
    rope = _read_rope(fields, position)
    # A llama3 config already contains the scaled length.
    scaled = int(rope.original_max_position * rope.factor) if rope.kind in ("linear", "yarn") else 0
    attention_bias = fields.flag("attention_bias", False) and architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        max_position=max(position, scaled),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        o_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False) and architecture == "LlamaForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        windows=_read_windows(fields, architecture, num_layers),
        dtype=_read_dtype(fields, checkpoint, dtype),
        eos_token_ids=_read_eos(checkpoint, fields.integer("vocab_size")),
        defaults=_read_defaults(checkpoint),
    )


def _architecture(fields: _Fields) -> str:
    names = fields.config.get("architectures") or ["(none)"]
    name = names[0] if isinstance(names, list) and names else "(none)"
    if not isinstance(name, str) or name not in _MAX_POSITION:
        raise fields.rejection(
            "architectures", f"names {name!r}, which is not supported; supported are {', '.join(_MAX_POSITION)}"
        )
    if "auto_map" in fields.config:
        raise fields.rejection("auto_map", "needs code from the checkpoint; remote code is never run")
    method = fields.config.get("quantization_config")
    if method is not None and not _quantizes_only_kv(method):
        method = method.get("quant_method") if isinstance(method, dict) else method
        raise fields.rejection("quantization_config", f"names {method!r}; use an unquantized checkpoint")
    activation = fields.config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.rejection("hidden_act", f"is {activation!r}; only silu is supported")
    return name


def _quantizes_only_kv(config: object) -> bool:
    """Whether a `quantization_config` leaves the weights alone, and only says that there are scales for a KV cache."""
    if not isinstance(config, dict) or config.get("quant_method") != "compressed-tensors":
        return False
    return bool(config.get("kv_cache_scheme")) and not config.get("config_groups")


def _read_rope(fields: _Fields, position: int) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    raw = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    if not isinstance(raw, dict):
        raise fields.rejection("rope_scaling", f"is {raw!r}; it must be an object")
    rope = _Fields(raw, fields.where + ": rope_parameters")
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise fields.rejection(
            "rope_scaling",
            f"has the type {kind!r}; supported are linear, llama3 and yarn, which keep cached keys valid",
        )
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0, above=1.0), above=1.0)
    if raw.get("partial_rotary_factor", fields.config.get("partial_rotary_factor", 1.0)) not in (None, 1, 1.0):
        raise fields.rejection("partial_rotary_factor", "is not 1; partial rotary embeddings are not supported")
    if kind == "default":
        return RopeSpec(theta)
    original = rope.integer(
        "original_max_position_embeddings", fields.integer("original_max_position_embeddings", position)
    )
    factor = rope.number("factor", position / original if kind == "yarn" else None, high=2**31 / original)
    if kind == "linear":
        return RopeSpec(theta, kind, factor, original)
    if kind == "llama3":
        low = rope.number("low_freq_factor")
        return RopeSpec(theta, kind, factor, original, low, rope.number("high_freq_factor", above=low))
    return RopeSpec(
        theta, kind, factor, original,
        beta_fast=rope.number("beta_fast", 32.0), beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(rope, factor), truncate=rope.flag("truncate", True),
    )  # fmt: skip


def _yarn_attention_factor(rope: _Fields, factor: float) -> float:
    """Return the scale of cos and sin (YaRN, arXiv 2309.00071, section 3.4; mscale as in DeepSeek's configs)."""

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.config.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.config.get("mscale") and rope.config.get("mscale_all_dim"):
        return mscale(rope.number("mscale")) / mscale(rope.number("mscale_all_dim"))
    return mscale(1.0)


def _read_windows(fields: _Fields, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    if architecture == "LlamaForCausalLM":
        return (None,) * num_layers
    if architecture == "MistralForCausalLM":
        default = None if "sliding_window" in fields.config else 4096
        is_windowed = fields.config.get("sliding_window", default) is not None
        return ((fields.integer("sliding_window", default) if is_windowed else None),) * num_layers
    if not fields.flag("use_sliding_window", False) or fields.config.get("sliding_window", 4096) is None:
        return (None,) * num_layers
    window = fields.integer("sliding_window", 4096)
    types = fields.config.get("layer_types")
    if types is None:
        first = fields.integer("max_window_layers", 28, low=0)
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    known = {"sliding_attention": window, "full_attention": None}
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in [*known] for kind in types):
        raise fields.rejection("layer_types", f"must name {num_layers} layers, sliding_attention or full_attention")
    return tuple(known[kind] for kind in types)


def _read_dtype(fields: _Fields, checkpoint: Checkpoint, dtype: str) -> str:
    if dtype != "auto":
        return dtype
    stored = next((entry.dtype for entry in (checkpoint.tensors or {}).values()), "F32")
    named = fields.config.get("dtype") or fields.config.get("torch_dtype")
    named = named or next((name for name, code in DTYPES.items() if code == stored), stored)
    if not isinstance(named, str) or named not in DTYPES:
        raise fields.rejection("dtype", f"is {named!r}; choose --dtype float32, bfloat16 or float16")
    return named


def _read_eos(checkpoint: Checkpoint, vocab_size: int) -> tuple[int, ...]:
    """Return the end-of-sequence ids of config.json and generation_config.json."""
    found: set[int] = set()
    for file, source in (("config.json", checkpoint.config), ("generation_config.json", checkpoint.generation_config)):
        value = source.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
                raise rejected(
                    f"{checkpoint.folder / file}: eos_token_id is {value!r}; ids must be between 0 and "
                    f"{vocab_size - 1}."
                )
            found.add(token_id)
    return tuple(sorted(found))


def _read_defaults(checkpoint: Checkpoint) -> SamplingDefaults:
    """Read the sampling defaults of generation_config.json; `do_sample: false` means greedy."""
    given = checkpoint.generation_config
    names = [field.name for field in dataclasses.fields(SamplingDefaults) if given.get(field.name) is not None]
    try:
        SamplingParams(**{name: given[name] for name in names})
    except InvalidValue as error:
        file = checkpoint.folder / "generation_config.json"
        raise rejected(f"{file}: {error.message} Correct or remove it.") from None
    defaults = SamplingDefaults(**{name: given[name] for name in names})
    return dataclasses.replace(defaults, temperature=0.0) if given.get("do_sample") is False else defaults


def _check_tensors(spec: ModelSpec, tensors: Mapping[str, TensorEntry], folder: Path) -> None:
    for name, shape in spec.tensor_shapes().items():
        entry = tensors.get(name)
        if entry is None:
            raise rejected(f"{folder} lacks the tensor {name}, so it is incomplete; download the model again.")
        if entry.shape != shape:
            raise rejected(
                f"{entry.file}: {name} has shape {list(entry.shape)}; according to config.json it must be "
                f"{list(shape)}."
            )
        if entry.dtype not in DTYPES.values():
            raise rejected(f"{entry.file}: {name} has type {entry.dtype}; supported are {', '.join(DTYPES.values())}.")
