"""GLM-4 and Seed-OSS are read as published."""

from __future__ import annotations

from dataclasses import replace

from app.checkpoint.spec import BlockNorms, RopeSpec
from app.checkpoint.specs.glm4 import GLM4_NAMES
from tests.checkpoint.reading import spec_of, version_5
from tests.checkpoint.specs.published_configs import GLM_4_9B, SEED_OSS_36B


def test_in_glm_4_neighbours_in_the_first_half_of_a_head_turn_together():
    spec = spec_of(GLM_4_9B)
    assert spec.ropes == (RopeSpec(10000.0, rotary_dim=64, has_neighbour_pairs=True),)
    assert (spec.block_norms, spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (BlockNorms.BOTH, True, False, False)
    absent = {name: value for name, value in GLM_4_9B.items() if name != "partial_rotary_factor"}
    assert spec_of(absent) == spec == spec_of(version_5(GLM_4_9B)), "transformers' defaults"
    whole = spec_of(GLM_4_9B | {"partial_rotary_factor": 1.0})
    assert whole.ropes == (replace(spec.ropes[0], rotary_dim=None),)
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    scaled = spec_of(GLM_4_9B | {"rope_scaling": yarn})
    assert (scaled.ropes[0].kind, scaled.ropes[0].rotary_dim, scaled.max_position) == ("yarn", 64, 131072)


def test_the_norms_of_glm_4_have_other_names():
    places = GLM4_NAMES.locate(spec_of(GLM_4_9B).tensor_shapes())
    found = {
        name.split(".")[-2]: rows.name.split(".")[-2]
        for name, rows in places.items()
        if name.startswith("model.layers.7.") and "layernorm" in name
    }
    assert found == {
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    }


def test_seed_oss_has_biases_where_its_file_says():
    spec = spec_of(SEED_OSS_36B)
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, False, False)
    changed = {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
    assert spec_of(SEED_OSS_36B | changed) == replace(spec, qkv_bias=False, o_bias=True, mlp_bias=True)
    assert spec_of(version_5(SEED_OSS_36B)) == spec
