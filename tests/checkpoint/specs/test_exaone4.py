"""EXAONE 4 is read as published."""

from __future__ import annotations

import pytest

from app.checkpoint.spec import NO_ROPE, BlockNorms, LayerSpec, QKNorm
from tests.checkpoint.reading import spec_of, version_5
from tests.checkpoint.specs.published_configs import EXAONE_4_1B, EXAONE_4_32B


def test_layers_without_a_window_do_not_turn():
    spec = spec_of(EXAONE_4_32B)
    assert spec.layers == (*(LayerSpec(4096),) * 3, LayerSpec(None, 1)) * 16
    assert spec.ropes[0].kind == "llama3" and spec.ropes[1] == NO_ROPE
    assert (spec.block_norms, spec.qk_norm) == (BlockNorms.AFTER, QKNorm.HEADS)
    assert spec_of(version_5(EXAONE_4_32B)) == spec


def test_without_windows_all_layers_turn():
    spec = spec_of(EXAONE_4_1B)
    assert set(spec.layers) == {LayerSpec()} and len(spec.ropes) == 1


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("LLLG", "LLLGLG"), (3, "LLGLLG"), ("GL", "GLGLGG"), ("L", "LLLLLG"), (1, "GGGGGG")],
)
def test_a_pattern_stands_for_the_types_of_layers(pattern: str | int, expected: str):
    spec = spec_of(EXAONE_4_32B | {"num_hidden_layers": 6, "layer_types": None, "sliding_window_pattern": pattern})
    assert "".join("G" if layer.window is None else "L" for layer in spec.layers) == expected
