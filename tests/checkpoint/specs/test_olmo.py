"""OLMo 2 and 3 are read as published."""

from __future__ import annotations

from app.checkpoint.spec import BlockNorms, LayerSpec, QKNorm, RopeSpec
from tests.checkpoint.reading import spec_of, version_5
from tests.checkpoint.specs.published_configs import OLMO_2_1B, OLMO_3_7B


def test_olmo_2_normalizes_what_blocks_add_and_all_heads_together():
    spec = spec_of(OLMO_2_1B)
    assert (spec.block_norms, spec.qk_norm) == (BlockNorms.AFTER, QKNorm.WHOLE)
    assert set(spec.layers) == {LayerSpec()} and spec.ropes == (RopeSpec(500000.0),)
    assert spec_of(version_5(OLMO_2_1B)) == spec


def test_olmo_3_scales_only_layers_without_a_window():
    spec = spec_of(OLMO_3_7B)
    full, windowed = spec.ropes
    assert windowed == RopeSpec(500000.0)
    assert (full.kind, full.factor, full.original_max_position) == ("yarn", 8.0, 8192)
    assert spec.layers == (*(LayerSpec(4096, 1),) * 3, LayerSpec()) * 8 and spec.max_position == 65536
    absent = {name: value for name, value in OLMO_3_7B.items() if name not in ("layer_types", "sliding_window")}
    assert spec_of(absent) == spec, "transformers' defaults"
    ropes = {
        "full_attention": OLMO_3_7B["rope_scaling"] | {"rope_theta": 500000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000},
    }
    old = {name: value for name, value in OLMO_3_7B.items() if name not in ("rope_scaling", "rope_theta")}
    assert spec_of(old | {"rope_parameters": ropes}) == spec


def test_equal_ropes_are_one():
    spec = spec_of(OLMO_3_7B | {"rope_scaling": None})
    assert spec.ropes == (RopeSpec(500000.0),) and {layer.rope for layer in spec.layers} == {0}
