"""Crafted configurations: each field of each kind of model wrong in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.checkpoint.specs import published_configs as published

NAN, INFINITE = float("nan"), float("inf")
COUNTS: tuple[Any, ...] = ("many", 0, -3, 2.5)
TINY: tuple[Any, ...] = (1e-200, 1e-45, 1e-19)
"""Numbers whose squares or reciprocals are beyond the range of float32."""
_NUMBERS: tuple[Any, ...] = ("large", 0, -1.0, NAN, INFINITE, *TINY)
FLAGS: tuple[Any, ...] = ("yes", 1)
_TYPES: tuple[Any, ...] = ("sliding_attention", ["full_attention"], ["chunked_attention"] * 26, [[]] * 26)
_YARN = {"rope_type": "yarn", "factor": 8.0}
_ZERO = {"full_attention": {"rope_theta": 0}}
_GROWING = _YARN | {"original_max_position_embeddings": 9}

Wrong = Mapping[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]]
"""Of each family a configuration that is read, and wrong values of its fields."""


def crafted(wrong: Wrong) -> dict[str, tuple[dict[str, Any], str]]:
    """Each configuration with one field wrong, and the field that the error must name."""
    return {
        f"{family}: {field} {value!r:.60}": (config | {field: value}, field)
        for family, (config, fields) in wrong.items()
        for field, values in fields.items()
        for value in values
    }


WRONG: Wrong = {
    "gemma 2": (
        published.GEMMA_2_2B,
        {
            "vocab_size": COUNTS, "sliding_window": COUNTS, "query_pre_attn_scalar": _NUMBERS,
            "attn_logit_softcapping": _NUMBERS, "final_logit_softcapping": _NUMBERS,
            "hidden_activation": ("gelu", "relu", 3, ["silu"]), "attention_bias": FLAGS, "layer_types": _TYPES,
            "use_bidirectional_attention": (True, "all"), "rope_theta": _NUMBERS, "head_dim": (255, 0, 10**6),
            "num_key_value_heads": (3, 0), "torch_dtype": ("float16", "int8"),
        },
    ),
    "gemma 3": (
        published.GEMMA_3_1B,
        {
            "sliding_window_pattern": COUNTS, "rope_local_base_freq": _NUMBERS, "rope_theta": _NUMBERS,
            "attn_logit_softcapping": (50.0,), "rope_scaling": ("linear", {"type": "dynamic"}, {"type": "linear"}),
            "rope_parameters": ("linear", {"factor": 8.0}, {"full_attention": "linear"}, _ZERO),
        },
    ),
    "gemma 3 with images": (published.GEMMA_3_4B, {"text_config": (None, [], "text"), "architectures": ({}, [3])}),
    "olmo 3": (
        published.OLMO_3_7B,
        {"rope_scaling": (_YARN | {"factor": 0}, _YARN | {"beta_fast": -1}), "sliding_window": COUNTS},
    ),
    "glm 4": (
        published.GLM_4_9B,
        {"partial_rotary_factor": (0, 1.5, "half", 0.01), "attention_bias": FLAGS, "rms_norm_eps": _NUMBERS},
    ),
    "seed oss": (published.SEED_OSS_36B, {"attention_out_bias": FLAGS, "mlp_bias": FLAGS}),
    "exaone 4": (
        published.EXAONE_4_32B | {"layer_types": None},
        {"sliding_window_pattern": ("", "LLX", 0, -4, 2.5, []), "sliding_window": COUNTS},
    ),
    "ministral 3": (
        published.MINISTRAL_3_8B["text_config"] | {"architectures": ["Ministral3ForCausalLM"]},
        {
            "rope_parameters": (
                _YARN | {"llama_4_scaling_beta": 0.1},  # from which position on?
                *(_GROWING | {"llama_4_scaling_beta": each} for each in ("much", -1, NAN, INFINITE, True)),
            ),
            "sliding_window": COUNTS,
        },
    ),
}  # fmt: skip

HOSTILE_CONFIGS = crafted(WRONG)
"""The configurations, and the field that the error must name."""
