"""The first Gemma is read as published."""

from __future__ import annotations

import pytest

from app.checkpoint.spec import Activation, BlockNorms, LayerSpec, RopeSpec
from tests.checkpoint.reading import assert_rejected, spec_of

GEMMA_2B = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "bos_token_id": 2, "eos_token_id": 1,
    "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048, "intermediate_size": 16384,
    "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
    "torch_dtype": "bfloat16", "vocab_size": 256000,
}  # fmt: skip


def test_it_is_a_llama_with_gelu_and_scaled_embeddings():
    spec = spec_of(GEMMA_2B)
    assert (spec.block_norms, spec.norm_offset, spec.activation) == (BlockNorms.BEFORE, 1.0, Activation.GELU_TANH)
    assert (spec.embedding_scale, spec.attention_scale, spec.head_dim) == (45.25, 1 / 16, 256)  # 2048 ** 0.5 rounded
    assert spec.layers == (LayerSpec(),) * 18 and spec.ropes == (RopeSpec(10000.0),)
    assert spec.tie_word_embeddings and not spec.qkv_bias
    assert spec_of(GEMMA_2B | {"hidden_act": "gelu_pytorch_tanh"}) == spec


def test_absent_fields_have_the_values_of_transformers():
    spec = spec_of({"architectures": ["GemmaForCausalLM"], "torch_dtype": "float32"})
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.intermediate_size) == (28, 16, 16, 24576)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "relu"), ("hidden_act", 3), ("head_dim", 255), ("use_bidirectional_attention", True),
        ("torch_dtype", "float16"), ("attention_bias", 1), ("rope_theta", 0), ("num_key_value_heads", 3),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_rejected_by_its_field(field: str, value: object):
    assert_rejected(GEMMA_2B | {field: value}, "dtype" if field == "torch_dtype" else field, "")
