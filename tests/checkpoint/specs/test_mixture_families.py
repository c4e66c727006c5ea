"""The families of mixtures of experts: published configurations, and the errors of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.checkpoint.expert_sizes import active_parameters
from app.checkpoint.spec import ExpertSpec, RouterScores
from tests.checkpoint.reading import assert_rejected, spec_of, version_5, windows
from tests.checkpoint.specs.published_mixtures import (
    GRANITE_31_3B_A800M,
    MIXTRAL_8X7B,
    QWEN_3_30B_A3B,
    QWEN_15_MOE_A27B,
)

REAL = {
    "qwen 3 30b a3b": (QWEN_3_30B_A3B, 30532122624, 3353032704),
    "qwen 1.5 moe a2.7b": (QWEN_15_MOE_A27B, 14315784192, 2689173504),
    "mixtral 8x7b": (MIXTRAL_8X7B, 46702792704, 12879925248),
    "granite 3.1 3b a800m": (GRANITE_31_3B_A800M, 3298793472, 882874368),
}


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_the_published_number_of_parameters(name: str):
    config, num_parameters, num_active = REAL[name]
    spec = spec_of(config)
    assert (spec.num_parameters(), active_parameters(spec)) == (num_parameters, num_active)
    assert spec_of(version_5(config)) == spec


def test_families_route_in_their_own_way():
    assert spec_of(QWEN_3_30B_A3B).experts == ExpertSpec(128, 8, 768, is_normalized=True)
    renamed = {"num_local_experts" if name == "num_experts" else name: value for name, value in QWEN_3_30B_A3B.items()}
    assert spec_of(renamed) == spec_of(QWEN_3_30B_A3B)
    assert spec_of(QWEN_15_MOE_A27B).experts == ExpertSpec(60, 4, 1408, shared_width=5632, has_shared_gate=True)
    assert spec_of(MIXTRAL_8X7B).experts == ExpertSpec(8, 2, 14336, is_normalized=True)
    granite = spec_of(GRANITE_31_3B_A800M)
    assert granite.experts == ExpertSpec(40, 8, 512, RouterScores.CHOSEN_SOFTMAX)
    assert (granite.residual_multiplier, granite.mlp_width) == (0.22, 0)
    hybrid = GRANITE_31_3B_A800M | {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"] * 32}
    experts = spec_of(hybrid | {"position_embedding_type": "rope", "shared_intermediate_size": 1024}).experts
    assert experts == replace(granite.experts, shared_width=1024)


def test_layers_without_experts_are_named_by_their_numbers_or_their_step():
    def sparse(**fields: Any) -> list[int]:
        layers = spec_of(QWEN_3_30B_A3B | {"num_hidden_layers": 6} | fields).layers
        return [index for index, layer in enumerate(layers) if layer.has_experts]

    assert sparse() == [0, 1, 2, 3, 4, 5]
    assert sparse(mlp_only_layers=[0, 4, 77]) == [1, 2, 3, 5]
    assert sparse(decoder_sparse_step=2) == [1, 3, 5]
    assert sparse(decoder_sparse_step=3, mlp_only_layers=[5]) == [2]
    dense = spec_of(QWEN_3_30B_A3B | {"num_hidden_layers": 6, "decoder_sparse_step": 7})
    assert dense.experts is None and dense.mlp_width == 6144


def test_windows_are_those_of_transformers():
    windowed = {"use_sliding_window": True, "sliding_window": 77, "max_window_layers": 5}
    assert windows(spec_of(QWEN_15_MOE_A27B | windowed))[:8] == (77, None, 77, None, 77, None, None, None)
    assert set(windows(spec_of(QWEN_3_30B_A3B | windowed))) == {77}
    assert set(windows(spec_of(MIXTRAL_8X7B | {"sliding_window": 9}))) == {9}
    assert spec_of({**MIXTRAL_8X7B, "rope_theta": None}).ropes[0].theta == 1e6


REJECTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "no experts": (MIXTRAL_8X7B, {"num_local_experts": 0}, ("num_local_experts", "0", "between 1")),
    "half an expert": (MIXTRAL_8X7B, {"num_local_experts": 7.5}, ("num_local_experts", "7.5", "integer")),
    "more than there are": (MIXTRAL_8X7B, {"num_experts_per_tok": 9}, ("num_experts_per_tok", "9", "8 experts")),
    "none for a token": (MIXTRAL_8X7B, {"num_experts_per_tok": 0}, ("num_experts_per_tok", "0")),
    "too many": (QWEN_3_30B_A3B, {"num_experts": 2**31}, ("num_experts", "100000")),
    "too many in all": (QWEN_3_30B_A3B, {"num_experts": 2084}, ("num_experts", "2084", "48 layers", "100,000")),
    "width": (QWEN_3_30B_A3B, {"moe_intermediate_size": 0}, ("moe_intermediate_size", "0")),
    "flag": (QWEN_3_30B_A3B, {"norm_topk_prob": 1}, ("norm_topk_prob", "true or false")),
    "step": (QWEN_3_30B_A3B, {"decoder_sparse_step": 0}, ("decoder_sparse_step", "0")),
    "dense layers": (QWEN_3_30B_A3B, {"mlp_only_layers": "0"}, ("mlp_only_layers", "list")),
    "a dense layer": (QWEN_3_30B_A3B, {"mlp_only_layers": [1.5]}, ("mlp_only_layers", "1.5")),
    "shared width": (QWEN_15_MOE_A27B, {"shared_expert_intermediate_size": -1}, ("shared_expert_intermediate_size",)),
    "windows": (
        QWEN_15_MOE_A27B, {"use_sliding_window": True, "layer_types": ["chunked"] * 24}, ("layer_types", "24 layers"),
    ),
    "activation": (MIXTRAL_8X7B, {"hidden_act": "gelu"}, ("hidden_act", "gelu")),
    "granite float16": (GRANITE_31_3B_A800M, {"torch_dtype": "float16"}, ("residual_multiplier", "bfloat16")),
    "granite shared": (GRANITE_31_3B_A800M, {"shared_intermediate_size": "8"}, ("shared_intermediate_size", "'8'")),
    "granite count": (GRANITE_31_3B_A800M, {"num_local_experts": [40]}, ("num_local_experts", "[40]")),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTIONS)
def test_an_unsupported_value_is_named_in_the_error(name: str):
    config, fields, words = REJECTIONS[name]
    assert_rejected(config | fields, *words)
