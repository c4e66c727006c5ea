"""The shipped files: an export of the same model has the same bytes each time."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from training.guide.export import WEIGHTS, export, shipped_digest
from training.guide.model import GuideModel, Shape
from training.guide.tokenizer import Markers


def test_the_same_model_is_the_same_bytes(tmp_path: Path):
    # safetensors writes metadata in an order by chance: six files in a row would not have the same one.
    model = GuideModel(Shape(vocab_size=16, hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4, ffn=8))
    found = set()
    for _ in range(6):
        export(model, Markers(0, 1, 2, 3), "digest", tmp_path)
        found.add((tmp_path / WEIGHTS).read_bytes())
    assert len(found) == 1
    assert shipped_digest(tmp_path) == "digest"
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        assert file.metadata() == {"corpus": "digest", "format": "pt"}
        assert {*file.keys()} == {*model.state_dict()}
