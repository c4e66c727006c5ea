"""On a GPU the quantized weights of a GGUF file are decoded while they are loaded, and one line says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from app.checkpoint.inspection import inspect
from app.checkpoint.sizes import weight_bytes
from app.config.settings import ModelConfig
from app.engine import build as engine_build
from app.kernels.ops import LinearWeight
from app.models.weights import DecoderWeights
from tests.engine.execute.gpu.gpu_engine import build
from tests.gguf_writer import tiny_gguf


def test_weights_are_decoded_to_bfloat16_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    file, loaded, load_weights = (
        tiny_gguf(tmp_path / "m.gguf", kind="Q8_0", num_hidden_layers=1),
        [],
        engine_build.load_weights,
    )

    def remembering(*args: object) -> DecoderWeights:
        loaded.append(load_weights(*args))  # type: ignore[arg-type]
        return loaded[0]

    monkeypatch.setattr(engine_build, "load_weights", remembering)
    caplog.set_level(logging.INFO, "quire.engine")
    build(file, deterministic=True)  # the products of others need a GPU for bfloat16
    assert [text for text in caplog.messages if "Q8_0" in text] == ["Weights of the type Q8_0 are decoded to bfloat16."]
    down = loaded[0].layers[0].mlp.down
    assert isinstance(down, LinearWeight) and down.weight.dtype is torch.bfloat16
    assert loaded[0].num_bytes == weight_bytes(inspect(ModelConfig(model=str(file))).spec, None)
