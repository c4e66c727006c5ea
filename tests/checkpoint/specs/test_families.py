"""The families besides Llama, Mistral and Qwen: published configurations, and the errors of each family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.hf_config import read_model
from app.checkpoint.spec import NO_ROPE, LayerSpec, RopeSpec
from tests.checkpoint.reading import assert_rejected, spec_of, version_5, windows
from tests.checkpoint.specs.published_configs import NUM_PARAMETERS

PHI_3_MINI_4K = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}, "bos_token_id": 1, "embd_pdrop": 0.0,
    "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 32064,
}  # fmt: skip
PHI_4_MINI = PHI_3_MINI_4K | {
    "intermediate_size": 8192, "max_position_embeddings": 131072, "num_attention_heads": 24, "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75, "rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48,
    "type": "longrope"}, "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
    "eos_token_id": 199999,
}  # fmt: skip
PHI_4 = PHI_3_MINI_4K | {
    "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384, "num_attention_heads": 40,
    "num_hidden_layers": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
    "rope_theta": 250000, "sliding_window": None, "vocab_size": 100352,
}  # fmt: skip
SMOLLM_3 = {
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "eos_token_id": 128012, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
    "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 5000000.0, "sliding_window": None, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
GRANITE_3_3_2B = {
    "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_multiplier": 0.015625,
    "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "granite", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 49159,
}  # fmt: skip
GRANITE_DENSE_HYBRID = GRANITE_3_3_2B | {
    "architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"] * 40, "num_local_experts": 0,
    "position_embedding_type": "rope", "shared_intermediate_size": 8192, "vocab_size": 100352,
}  # fmt: skip

REAL = {
    "phi 3 mini": (PHI_3_MINI_4K, 3821079552),
    "phi 4 mini": (PHI_4_MINI, 3836021760),
    "phi 4": (PHI_4, 14659507200),
    "smollm 3": (SMOLLM_3, 3075098624),
    "granite 3.3 2b": (GRANITE_3_3_2B, 2533539840),
}


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_models_of_later_families_have_the_published_number_of_parameters(name: str):
    config, num_parameters = NUM_PARAMETERS[name]
    assert spec_of(config).num_parameters() == num_parameters


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_the_published_number_of_parameters(name: str):
    config, num_parameters = REAL[name]
    assert spec_of(config).num_parameters() == num_parameters
    assert spec_of(version_5(config)) == spec_of(config)


def test_phi_has_one_window_for_all_layers_and_rotary_embeddings_of_a_part_of_each_head():
    assert set(windows(spec_of(PHI_3_MINI_4K))) == {2047} and set(windows(spec_of(PHI_4))) == {None}
    assert spec_of(PHI_3_MINI_4K).ropes == (RopeSpec(10000.0),) and spec_of(PHI_4).ropes == (RopeSpec(250000.0),)
    (rope,) = spec_of(PHI_4_MINI).ropes
    assert (rope.kind, rope.rotary_dim, rope.divisors) == ("divisors", 96, (2.0,) * 48)
    assert rope.attention_factor == pytest.approx(1.1902380714238083)


@pytest.mark.parametrize(("max_model_len", "divisor"), [(None, 2.0), (4097, 2.0), (4096, 1.0), (100, 1.0)])
def test_longrope_has_the_factors_of_the_longest_text_that_is_served(max_model_len: int | None, divisor: float):
    opened = Checkpoint(Path("model"), PHI_4_MINI, {}, None, "0")
    assert set(read_model(opened, max_model_len=max_model_len)[1].ropes[0].divisors) == {divisor}


def test_smollm_has_layers_without_rotary_embedding():
    spec = spec_of(SMOLLM_3)
    assert spec.ropes == (RopeSpec(5e6), NO_ROPE) and spec.tie_word_embeddings
    assert spec.layers == (LayerSpec(), LayerSpec(), LayerSpec(), LayerSpec(rope=1)) * 9
    without = {name: value for name, value in SMOLLM_3.items() if name not in ("no_rope_layers", "layer_types")}
    assert spec_of(without).layers == spec.layers
    assert spec_of(without | {"no_rope_layer_interval": 2}).layers == (LayerSpec(), LayerSpec(rope=1)) * 18


def test_granite_has_four_multipliers():
    spec = spec_of(GRANITE_3_3_2B)
    assert (spec.embedding_scale, spec.residual_multiplier) == (12.0, 0.22)
    assert (spec.attention_scale, spec.logit_scale) == (0.015625, 0.125)
    hybrid = spec_of(GRANITE_DENSE_HYBRID)
    assert replace(hybrid, architecture=spec.architecture, vocab_size=spec.vocab_size) == spec
    assert spec_of(GRANITE_DENSE_HYBRID | {"position_embedding_type": "nope"}).ropes == (NO_ROPE,)


FAMILY_REJECTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "phi llama3": (PHI_4_MINI, {"rope_scaling": {"type": "llama3"}}, ("rope_scaling", "llama3", "longrope")),
    "phi factors": (
        PHI_4_MINI,
        {"rope_scaling": {"type": "su", "long_factor": [1.0] * 47, "short_factor": [1.0] * 48}},
        ("long_factor", "48 numbers"),
    ),
    "phi factor zero": (
        PHI_4_MINI,
        {"rope_scaling": {"type": "su", "long_factor": [1.0] * 47 + [0], "short_factor": [1.0] * 48}},
        ("long_factor[47]", "above"),
    ),
    "phi odd part": (PHI_4_MINI, {"partial_rotary_factor": 0.76}, ("partial_rotary_factor", "0.76", "128", "even")),
    "phi part above 1": (PHI_4_MINI, {"partial_rotary_factor": 1.5}, ("partial_rotary_factor", "1.5")),
    "phi original length 1": (
        PHI_4_MINI, {"original_max_position_embeddings": 1}, ("original_max_position_embeddings", "between 2"),
    ),
    "phi window": (PHI_4, {"sliding_window": 0}, ("sliding_window", "0")),
    "smollm list": (SMOLLM_3, {"no_rope_layers": [1, 0]}, ("no_rope_layers", "36 layers")),
    "smollm values": (SMOLLM_3, {"no_rope_layers": [2] * 36}, ("no_rope_layers", "0 and 1")),
    "granite multiplier": (GRANITE_3_3_2B, {"residual_multiplier": 0}, ("residual_multiplier", "above")),
    "granite float16": (GRANITE_3_3_2B, {"torch_dtype": "float16"}, ("residual_multiplier", "bfloat16")),
    "granite recurrent": (
        GRANITE_DENSE_HYBRID, {"layer_types": ["mamba"] * 39 + ["attention"]}, ("layer_types", "mamba"),
    ),
    "granite positions": (
        GRANITE_DENSE_HYBRID, {"position_embedding_type": "alibi"}, ("position_embedding_type", "alibi"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILY_REJECTIONS)
def test_an_unsupported_feature_of_a_family_is_named_in_the_error(name: str):
    config, fields, words = FAMILY_REJECTIONS[name]
    assert_rejected(config | fields, *words)
