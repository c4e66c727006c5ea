"""Reading config.json as saved by transformers 4 and 5, and the errors that name what is not supported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.inspection import inspect
from app.checkpoint.spec import QKNorm, RopeSpec
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import TensorType
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.cases import examples
from tests.checkpoint.reading import assert_rejected, read_spec, spec_of, version_5, windows
from tests.checkpoints import ARCHITECTURES, config_json, damaged_copy, tiny

LLAMA_3_1 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
LLAMA_3_2_1B = LLAMA_3_1 | {
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "tie_word_embeddings": True, "rope_scaling": LLAMA_3_1["rope_scaling"] | {"factor": 32.0},
}  # fmt: skip
LLAMA_1 = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "rms_norm_eps": 1e-06, "torch_dtype": "float16", "vocab_size": 32000,
}  # fmt: skip
MISTRAL_0_1 = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}  # fmt: skip
MISTRAL_0_3 = MISTRAL_0_1 | {"rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768}
QWEN_2_5 = {
    "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
    "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN_3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


REAL = {
    "llama 3.1": (LLAMA_3_1, 8030261248),
    "llama 3.2 1b": (LLAMA_3_2_1B, 1235814400),
    "llama 1": (LLAMA_1, 6738415616),
    "mistral 0.1": (MISTRAL_0_1, 7241732096),
    "mistral 0.3": (MISTRAL_0_3, 7248023552),
    "qwen 2.5": (QWEN_2_5, 494032768),
    "qwen 3": (QWEN_3, 596049920),
}


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_the_published_number_of_parameters(name: str):
    config, num_parameters = REAL[name]
    assert spec_of(config).num_parameters() == num_parameters


@pytest.mark.parametrize("name", REAL)
def test_the_formats_of_transformers_4_and_5_give_the_same_spec(name: str):
    assert spec_of(version_5(REAL[name][0])) == spec_of(REAL[name][0])


def test_llama_3_is_read_as_published():
    spec = spec_of(LLAMA_3_1)
    assert spec.ropes[0] == RopeSpec(500000.0, "llama3", 8.0, 8192, 1.0, 4.0)
    assert (spec.head_dim, spec.max_position, spec.dtype) == (128, 131072, "bfloat16")
    assert spec.eos_token_ids == (128001, 128008, 128009)
    assert not (spec.qkv_bias or spec.o_bias or spec.mlp_bias or spec.tie_word_embeddings)
    assert spec.qk_norm is QKNorm.NONE
    assert windows(spec) == (None,) * 32
    assert spec_of(LLAMA_1).num_kv_heads == 32, "Llama 1 has no num_key_value_heads"


def test_sliding_windows_follow_the_rules_of_each_architecture():
    assert set(windows(spec_of(MISTRAL_0_1))) == {4096}
    assert set(windows(spec_of(MISTRAL_0_3))) == {None}
    without = {name: value for name, value in MISTRAL_0_1.items() if name != "sliding_window"}
    assert set(windows(spec_of(without))) == {4096}, "transformers' default"
    assert set(windows(spec_of(LLAMA_3_1 | {"sliding_window": 5}))) == {None}
    assert set(windows(spec_of(QWEN_2_5))) == {None}, "use_sliding_window is false"
    given = QWEN_2_5 | {"use_sliding_window": True}
    assert windows(spec_of(given)) == (None,) * 21 + (32768,) * 3
    types = ["full_attention", "sliding_attention"] * 12
    given = QWEN_2_5 | {"use_sliding_window": True, "layer_types": types, "sliding_window": 128}
    assert windows(spec_of(given)) == (None, 128) * 12
    assert set(windows(spec_of(given | {"sliding_window": None}))) == {None}


def test_biases_and_norms_belong_to_their_architectures():
    assert spec_of(QWEN_2_5).qkv_bias and not spec_of(QWEN_2_5).o_bias
    qwen = spec_of(QWEN_3 | {"attention_bias": True})
    assert qwen.qk_norm is QKNorm.HEADS and qwen.qkv_bias and qwen.o_bias and not spec_of(QWEN_3).qkv_bias
    llama = spec_of(LLAMA_3_1 | {"attention_bias": True, "mlp_bias": True})
    assert llama.qkv_bias and llama.o_bias and llama.mlp_bias
    mistral = spec_of(MISTRAL_0_1 | {"attention_bias": True, "mlp_bias": True})
    assert not (mistral.qkv_bias or mistral.o_bias or mistral.mlp_bias)


def test_yarn_and_linear_scaling_lengthen_the_context():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    spec = spec_of(QWEN_2_5 | {"rope_scaling": yarn})
    assert spec.max_position == 131072
    (rope,) = spec.ropes
    assert (rope.kind, rope.factor, rope.beta_fast, rope.beta_slow) == ("yarn", 4.0, 32.0, 1.0)
    assert rope.attention_factor == pytest.approx(1.138629436)
    mscale = yarn | {"mscale": 1.0, "mscale_all_dim": 1.0}
    assert spec_of(QWEN_2_5 | {"rope_scaling": mscale}).ropes[0].attention_factor == 1.0
    assert spec_of(LLAMA_1 | {"rope_scaling": {"type": "linear", "factor": 2.0}}).max_position == 4096


def test_eos_ids_and_defaults_come_from_both_files():
    generation = {"eos_token_id": [151645, 151643], "temperature": 0.7, "top_p": 0.8, "top_k": 20,
                  "repetition_penalty": 1.05, "do_sample": True, "pad_token_id": 3}  # fmt: skip
    spec = spec_of(QWEN_2_5, generation=generation)
    assert spec.eos_token_ids == (151643, 151645)
    assert spec.defaults == {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    assert spec_of(QWEN_2_5).defaults == {}
    assert spec_of(QWEN_2_5, generation={"do_sample": False, "top_k": 5}).defaults == {"top_k": 5, "temperature": 0.0}


@pytest.mark.parametrize(
    "generation",
    [{"temperature": "hot"}, {"top_p": 7}, {"top_k": True}, {"min_p": -1}, {"repetition_penalty": 0},
     {"eos_token_id": "x"}, {"eos_token_id": [151936]}, {"eos_token_id": -1}],
)  # fmt: skip
def test_a_bad_value_in_generation_config_is_named_in_the_error(generation: dict[str, Any]):
    with pytest.raises(ModelRefused, match=f"generation_config.json: {next(iter(generation))} is "):
        spec_of(QWEN_2_5, generation=generation)


REJECTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "dynamic rope": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("dynamic", "linear, llama3 and yarn")),
    "longrope": ({"rope_parameters": {"rope_type": "longrope"}}, ("longrope",)),
    "no object for rope": ({"rope_scaling": "yarn"}, ("rope_scaling", "object")),
    "rope factor missing": ({"rope_scaling": {"type": "linear"}}, ("factor",)),
    "rope factor not a number": ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, ("factor",)),
    "rope factor beyond all bounds": (
        {"rope_scaling": {"type": "yarn", "factor": 1e308, "original_max_position_embeddings": 8192}},
        ("factor",),
    ),
    "rope theta zero": ({"rope_theta": 0}, ("rope_theta",)),
    "rope theta one": ({"rope_theta": 1}, ("rope_theta", "above 1")),
    "rope bands upside down": (
        {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
        ("high_freq_factor", "above 4"),
    ),
    "an integer of 2000 digits": ({"rope_theta": 10**2000}, ("rope_theta",)),
    "partial rotary": ({"partial_rotary_factor": 0.5}, ("partial_rotary_factor",)),
    "unknown architecture": ({"architectures": ["GPT2LMHeadModel"]}, ("GPT2LMHeadModel", "supported are Llama")),
    "no architecture": ({"architectures": []}, ("(none)", "MistralForCausalLM")),
    "architecture no text": ({"architectures": [{}]}, ("architectures",)),
    "quantized": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ("quantization_config", "gptq")),
    "gelu": ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
    "remote code": ({"auto_map": {"AutoModel": "modeling.X"}}, ("auto_map", "never run")),
    "heads": ({"num_key_value_heads": 5}, ("num_key_value_heads", "5", "32")),
    "odd head": ({"head_dim": 7}, ("head_dim", "7", "even")),
    "no layers": ({"num_hidden_layers": 0}, ("num_hidden_layers", "0")),
    "negative layers": ({"num_hidden_layers": -3}, ("num_hidden_layers", "-3")),
    "a million layers": ({"num_hidden_layers": 10**6}, ("num_hidden_layers", "1000000")),
    "layers no integer": ({"num_hidden_layers": 2.0}, ("num_hidden_layers", "integer")),
    "vocabulary true": ({"vocab_size": True}, ("vocab_size",)),
    "hidden size missing": ({"hidden_size": None}, ("hidden_size", "None")),
    "epsilon": ({"rms_norm_eps": "small"}, ("rms_norm_eps", "small")),
    "tied no flag": ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "true or false")),
    "type": ({"torch_dtype": "float64"}, ("dtype", "float64", "bfloat16")),
    "type no text": ({"torch_dtype": ["float32"]}, ("dtype",)),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_an_unsupported_feature_is_named_in_the_error(name: str):
    fields, words = REJECTIONS[name]
    assert_rejected(LLAMA_3_1 | {"rope_scaling": None} | fields, *words)


def test_layer_types_are_checked():
    for types in ("sliding_attention", ["full_attention"], ["other"] * 24, [{}] * 24):
        assert_rejected(QWEN_2_5 | {"use_sliding_window": True, "layer_types": types}, "layer_types", "24 layers")


TENSORS = Checkpoint.open(tiny("Qwen3")).tensors


def with_tensors(changed: dict[str, StoredTensor | None]) -> Checkpoint:
    """A tiny checkpoint with some tensors replaced or (None) left out."""
    tensors = {name: entry for name, entry in (TENSORS | changed).items() if entry is not None}
    return Checkpoint(Path("model"), config_json("Qwen3"), {}, tensors, "0")


def test_tensors_are_checked_against_the_config():
    name = "model.layers.1.self_attn.q_proj.weight"
    entry = TENSORS[name]
    assert read_spec(with_tensors({})).num_layers == 2
    for changed, words in (
        ({name: None}, ("lacks the tensor", name, "incomplete")),
        ({"lm_head.weight": None}, ("lm_head.weight",)),
        ({name: replace(entry, shape=(64, 63))}, (name, "[64, 63]", "[64, 64]", "config.json")),
        ({name: replace(entry, type=TensorType("F8_E4M3", 1, 1))}, (name, "F8_E4M3", "BF16")),
    ):
        with pytest.raises(ModelRefused) as rejection:
            read_spec(with_tensors(changed))
        assert all(word in rejection.value.message for word in words), rejection.value.message


def test_tensors_that_no_decoder_needs_are_ignored():
    integers = replace(next(iter(TENSORS.values())), type=TensorType("I64", 1, 8))
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": integers}
    assert read_spec(with_tensors(extra)) == read_spec(with_tensors({}))


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_auto_is_the_dtype_of_the_checkpoint(stored: str, tmp_path: Path):
    folder = tiny("Llama", torch_dtype=stored)
    assert inspect(ModelConfig(model=str(folder))).spec.dtype == stored
    assert inspect(ModelConfig(model=str(folder), dtype="float16")).spec.dtype == "float16"
    unnamed = damaged_copy(folder, tmp_path / "model", torch_dtype=None)
    assert inspect(ModelConfig(model=str(unnamed))).spec.dtype == stored, "then the tensors say it"


def test_a_context_longer_than_the_models_is_rejected():
    folder = str(tiny("Llama"))
    assert inspect(ModelConfig(model=folder, max_model_len=512)).spec.max_position == 512
    with pytest.raises(ModelRefused, match=r"max_model_len is 513; .* at most 512 tokens") as rejection:
        inspect(ModelConfig(model=folder, max_model_len=513))
    assert rejection.value.param == "max_model_len"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_config_saved_by_transformers_is_read_back(architecture: str, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    folder = tiny(architecture)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path)
    assert "rope_parameters" in json.loads((tmp_path / "config.json").read_text())
    assert read_spec(Checkpoint.open(tmp_path)) == read_spec(Checkpoint.open(folder))


NONSENSE = (
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
)


@settings(max_examples=examples(200))
@given(st.sampled_from([LLAMA_3_1, MISTRAL_0_1, QWEN_2_5, version_5(QWEN_3)]), st.data())
def test_random_configs_raise_only_the_documented_error(config: dict[str, Any], data: st.DataObject):
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    fields = data.draw(st.dictionaries(st.sampled_from([*config, "head_dim", "layer_types"]), NONSENSE, max_size=3))
    inner = data.draw(st.dictionaries(st.sampled_from([*rope, "factor", "rope_type"]), NONSENSE, max_size=2))
    try:
        spec = spec_of(config | {"rope_scaling": rope | inner, "use_sliding_window": True} | fields)
    except ModelRefused as rejection:
        assert "\n" not in rejection.message.replace(str(fields), "")
        return
    assert spec.num_parameters() > 0 and spec.max_position > 0
