"""Gemma 2 and 3 are read as published, in the formats of transformers 4 and 5."""

from __future__ import annotations

import pytest
import torch

from app.checkpoint.spec import Activation, BlockNorms, LayerSpec, QKNorm, RopeSpec
from app.checkpoint.specs.gemma import embedding_scale
from tests.checkpoint.reading import assert_rejected, spec_of, version_5
from tests.checkpoint.specs.published_configs import GEMMA_2_2B, GEMMA_3_1B, GEMMA_3_4B


def test_gemma_2_has_a_window_in_every_second_layer_and_two_caps():
    spec = spec_of(GEMMA_2_2B)
    assert spec.layers == (LayerSpec(4096), LayerSpec()) * 13 and spec.ropes == (RopeSpec(10000.0),)
    assert (spec.attention_softcap, spec.logit_softcap, spec.attention_scale) == (50.0, 30.0, 1 / 16)
    assert (spec.block_norms, spec.qk_norm, spec.norm_offset) == (BlockNorms.BOTH, QKNorm.NONE, 1.0)
    assert spec.activation is Activation.GELU_TANH and spec.tie_word_embeddings
    without = spec_of(GEMMA_2_2B | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert without.attention_softcap is None and without.logit_softcap is None
    assert spec_of(version_5(GEMMA_2_2B)) == spec
    absent = {name: value for name, value in GEMMA_2_2B.items() if "softcapping" not in name}
    assert spec_of(absent) == spec, "transformers' defaults"


def test_gemma_3_has_five_layers_with_windows_and_a_base_of_their_own_to_one_without():
    spec = spec_of(GEMMA_3_1B)
    assert spec.ropes == (RopeSpec(1e6), RopeSpec(1e4))
    assert spec.layers == (*(*(LayerSpec(512, 1),) * 5, LayerSpec()) * 4, *(LayerSpec(512, 1),) * 2)
    assert (spec.qk_norm, spec.attention_softcap, spec.logit_softcap) == (QKNorm.HEADS, None, None)
    assert spec.eos_token_ids == (1, 106) and spec.max_position == 32768


def test_only_the_text_of_a_gemma_3_with_images_is_described():
    spec = spec_of(GEMMA_3_4B)
    assert spec.architecture == "Gemma3ForConditionalGeneration" and spec.dtype == "bfloat16"
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262208)
    assert spec.ropes == (RopeSpec(1e6, "linear", 8.0, 131072), RopeSpec(1e4))
    assert spec.max_position == 131072, "the length is that after scaling"
    assert spec.eos_token_ids == (1, 106) and spec.tie_word_embeddings


def test_ropes_of_layers_are_read_as_transformers_5_saves_them():
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    text = {name: value for name, value in GEMMA_3_4B["text_config"].items() if name != "rope_scaling"}
    saved = GEMMA_3_4B | {"text_config": text | {"rope_parameters": ropes}}
    assert spec_of(saved) == spec_of(GEMMA_3_4B)
    for absent in ({"full_attention": ropes["full_attention"]}, ropes | {"sliding_attention": None}):
        assert spec_of(GEMMA_3_4B | {"text_config": text | {"rope_parameters": absent}}) == spec_of(saved)
    for wrong in ({"rope_type": "linear", "factor": 8.0}, {"full_attention": 3}, "linear"):
        text = GEMMA_3_4B["text_config"] | {"rope_parameters": wrong}
        assert_rejected(GEMMA_3_4B | {"text_config": text}, "text_config: rope_parameters", "full_attention")


@pytest.mark.parametrize("hidden_size", [1152, 2304, 2560, 3072, 3584, 3840, 4608, 5376])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_scale_of_embeddings_is_rounded_as_in_transformers(hidden_size: int, dtype: str):
    expected = torch.tensor(hidden_size**0.5).to(getattr(torch, dtype))
    assert embedding_scale(hidden_size, dtype) == expected.item()


def test_what_a_gemma_may_not_have_is_named():
    assert_rejected(GEMMA_3_1B | {"use_bidirectional_attention": True}, "use_bidirectional_attention")
    assert_rejected(GEMMA_3_1B | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping", "Gemma 3")
    assert_rejected(GEMMA_2_2B | {"torch_dtype": "float16"}, "float16", "bfloat16")
    assert_rejected(GEMMA_2_2B | {"hidden_activation": "gelu"}, "hidden_activation", "'gelu'", "gelu_pytorch_tanh")
