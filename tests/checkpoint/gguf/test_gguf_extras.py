"""Numbers that only some families have in GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint.gguf.gguf_model import read_gguf
from app.checkpoint.inspection import inspect
from app.checkpoint.spec import QueryScale
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.checkpoint.gguf.test_gguf_spec import read
from tests.gguf_writer import GGUF_MODELS, tiny_gguf


def test_multipliers_are_granites_only(tmp_path: Path):
    spec = read(tmp_path, architecture="Granite")
    assert (spec.embedding_scale, spec.residual_multiplier, spec.attention_scale) == (3.7, 0.22, 0.11)
    assert spec.logit_scale == 1 / 6
    with pytest.raises(ModelRefused, match=r"smollm3: residual_scale is 0\.5; this is not supported"):
        read(tmp_path, {"smollm3.residual_scale": 0.5}, "SmolLM3")


def test_multipliers_of_zero_are_the_same_as_none(tmp_path: Path):
    names = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
    spec = read(tmp_path, {f"granite.{name}": 0.0 for name in names}, "Granite")
    assert spec == read(tmp_path, {f"granite.{name}": None for name in names}, "Granite")
    assert (spec.attention_scale, spec.logit_scale) == (None, 1.0)


def test_a_granite_in_float16_is_rejected(tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf", "Granite", "F16", **GGUF_MODELS["Granite"])
    with pytest.raises(ModelRefused, match=r"residual_scale is not 1, which float16 cannot serve; choose --dtype"):
        read_gguf(file, ModelConfig())
    assert read_gguf(file, ModelConfig(dtype="bfloat16")).spec.residual_multiplier == 0.22


@pytest.mark.parametrize(("architecture", "num_layers"), [("Gemma2", 46), ("Gemma3", 62)])
def test_the_gemmas_of_27_billion_weights_scale_queries_by_the_width_of_a_share(
    architecture: str, num_layers: int, tmp_path: Path
):
    """Of the model's width, as llama.cpp does by the number of layers; all others by the width of a head."""
    fields = GGUF_MODELS[architecture] | {"num_hidden_layers": num_layers, "hidden_size": 128}
    assert inspect(
        ModelConfig(model=str(tiny_gguf(tmp_path / "m.gguf", architecture, **fields)))
    ).spec.attention_scale == pytest.approx((128 / 4) ** -0.5)
    assert read(tmp_path, architecture=architecture).attention_scale == 16**-0.5


def test_caps_are_those_of_the_file_and_in_a_gemma_2_those_of_llama_cpp(tmp_path: Path):
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    for given, wanted in (((3.0, 2.0), (3.0, 2.0)), ((None, None), (50.0, 30.0)), ((0.0, 0.0), (None, None))):
        spec = read(tmp_path, {f"gemma2.{name}": cap for name, cap in zip(caps, given, strict=True)}, "Gemma2")
        assert (spec.attention_softcap, spec.logit_softcap) == wanted
    assert read(tmp_path, architecture="Gemma3").logit_softcap is None
    assert read(tmp_path, {"gemma3.final_logit_softcapping": 20.0}, "Gemma3").logit_softcap == 20.0
    with pytest.raises(ModelRefused, match=r"gemma3: attn_logit_softcapping is 20\.0; this is not supported"):
        read(tmp_path, {"gemma3.attn_logit_softcapping": 20.0}, "Gemma3")


@pytest.mark.parametrize("architecture", ["Gemma2", "Gemma3"])
def test_a_gemma_in_float16_is_rejected(architecture: str, tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf", architecture, "F16", **GGUF_MODELS[architecture])
    with pytest.raises(ModelRefused, match="dtype is float16, whose range is too small for a Gemma; choose --dtype"):
        read_gguf(file, ModelConfig())
    assert read_gguf(file, ModelConfig(dtype="bfloat16")).spec.embedding_scale == 8


def test_a_mistral_3_without_a_scale_of_queries_has_none(tmp_path: Path):
    spec = read(tmp_path, architecture="Ministral3")
    assert spec.query_scale == QueryScale(16, 0.3)
    for none in (None, 0.0):
        assert read(tmp_path, {"mistral3.attention.temperature_scale": none}, "Ministral3").query_scale is None


def test_an_olmo_with_windows_is_the_newer_one(tmp_path: Path):
    assert read(tmp_path, architecture="Olmo3").architecture == "Olmo3ForCausalLM"
    assert read(tmp_path, architecture="Olmo2").architecture == "Olmo2ForCausalLM"
