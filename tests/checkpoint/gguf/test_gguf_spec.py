"""The spec of a GGUF file is that of the same model's folder; what is not supported is rejected by its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app.checkpoint.gguf.gguf_model import read_gguf
from app.checkpoint.gguf.gguf_names import stored_name
from app.checkpoint.gguf.gguf_spec import GGUF_FAMILIES
from app.checkpoint.inspection import inspect
from app.checkpoint.spec import NO_ROPE, BlockNorms, ExpertSpec, LayerSpec, ModelSpec, RopeSpec
from app.checkpoint.tensor_types import TENSOR_TYPES
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.checkpoints import tiny
from tests.gguf_writer import GGUF_MODELS, model_fields, stored_tensors, text_fields, tiny_gguf, write_gguf

# Architectures that are written as another one.
SAME = {"Mistral": "Llama", "GraniteMoeShared": "GraniteMoe"}


def read(
    tmp_path: Path,
    fields: dict[str, Any] | None = None,
    architecture: str = "Llama",
    *,
    max_model_len: int | None = None,
    **tensors: Any,
) -> ModelSpec:
    """The spec of a tiny model with keys and tensors replaced, or (None) left out; `blk_0_x` is blk.0.x.weight."""
    folder = tiny(architecture, **GGUF_MODELS[architecture])
    metadata = model_fields(folder, architecture) | text_fields(folder) | (fields or {})
    stored = stored_tensors(folder, architecture)
    stored |= {f"{name.replace('blk_0_', 'blk.0.')}.weight": tensor for name, tensor in tensors.items()}
    file = write_gguf(
        tmp_path / "m.gguf",
        {name: value for name, value in metadata.items() if value is not None},
        {name: tensor for name, tensor in stored.items() if tensor is not None},
    )
    return read_gguf(file, ModelConfig(max_model_len=max_model_len)).spec


@pytest.mark.parametrize("architecture", GGUF_MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_spec_is_that_of_the_folder(architecture: str, tied: bool, tmp_path: Path):
    fields = GGUF_MODELS[architecture] | {
        "tie_word_embeddings": tied,
        "attention_bias": architecture in ("Llama", "Glm4", "SeedOss"),
        "mlp_bias": architecture == "Llama",
    }
    wanted = inspect(ModelConfig(model=str(tiny(architecture, **fields)))).spec
    found = inspect(ModelConfig(model=str(tiny_gguf(tmp_path / "m.gguf", architecture, **fields)))).spec
    end_ids = found.eos_token_ids  # of the tokens, which the folder's config.json does not name
    same = dataclasses.replace(
        found,
        eos_token_ids=wanted.eos_token_ids,
        architecture=wanted.architecture,
        norm_offset=wanted.norm_offset,  # the norms of a file are whole
    )
    assert same == wanted
    assert found.norm_offset == 0
    assert found.architecture == f"{SAME.get(architecture, architecture)}ForCausalLM"
    assert set(wanted.eos_token_ids) < set(end_ids)


def test_fields_have_the_defaults_of_llama_cpp(tmp_path: Path):
    names = ("attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base")
    assert read(tmp_path, {f"llama.{name}": None for name in names}) == read(tmp_path)


def test_lists_of_equal_values_are_one_value(tmp_path: Path):
    assert read(tmp_path, {"llama.attention.head_count_kv": [2, 2], "llama.feed_forward_length": [96, 96]}) == read(
        tmp_path
    )
    with pytest.raises(ModelRefused, match=r"head_count_kv is \(2, 1\)"):
        read(tmp_path, {"llama.attention.head_count_kv": [2, 1]})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "mamba"}, "is 'mamba', which is not supported; supported are llama"),
        ({"general.architecture": None}, "general.architecture is None"),
        ({"general.architecture": 3}, "general.architecture is 3"),
        ({"llama.block_count": None}, "llama: block_count is None; it must be an integer"),
        ({"llama.block_count": "2"}, "block_count is '2'"),
        ({"llama.block_count": 2**31}, "block_count"),
        ({"llama.embedding_length": 0}, "embedding_length is 0"),
        ({"llama.attention.head_count": 3}, "attention.head_count_kv is 2; it must divide head_count, 3"),
        ({"llama.attention.value_length": 8}, "value_length"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is not 16"),
        ({"llama.expert_count": 8}, "expert_used_count is None; it must be an integer"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "lacks the tensor blk.0.ffn_gate_inp.weight"),
        ({"llama.attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"llama.attention.causal": False}, "attention.causal is false; supported are models whose tokens"),
        ({"llama.attention.causal": 1}, "attention.causal is 1; it must be true or false"),
        *(
            ({"llama.pooling_type": kind}, rf"pooling_type is {kind}; supported are 1 \(mean\) and 3 \(last token\)")
            for kind in (0, 2, 4)
        ),
        ({"llama.pooling_type": -1}, "pooling_type is -1; it must be an integer"),
        ({"llama.rope.scaling.type": "longrope"}, "is 'longrope'; supported are none, linear and yarn"),
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.factor is None"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is None"),
        ({"llama.feed_forward_length": 128}, r"ffn_\w+.weight has shape .*according to the metadata it must be"),
        ({"llama.block_count": 3}, "lacks the tensor blk.2."),
        ({"llama.block_count": 1}, r"contains the tensor blk\.1\..*, which a LlamaForCausalLM does not have"),
        ({"tokenizer.ggml.eos_token_id": 307}, "eos_token_id is 307; it must be an integer between 0 and 306"),
        ({"tokenizer.ggml.eot_token_id": -1}, "eot_token_id is -1"),
        ({"tokenizer.ggml.tokens": ["a"] * 308}, "token_embd.weight has 307 rows for 308 tokens"),
        ({"general.sampling.temp": -1.0}, "general.sampling: temperature is -1.0"),
        ({"general.sampling.top_k": "many"}, "general.sampling: top_k"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_rejected_by_its_key(fields: dict[str, Any], words: str, tmp_path: Path):
    with pytest.raises(ModelRefused, match=words) as rejection:
        read(tmp_path, fields)
    assert "m.gguf" in rejection.value.message and "\n" not in rejection.value.message


@pytest.mark.parametrize("number", [n for n, kind in TENSOR_TYPES.items() if not kind.is_supported])
def test_types_of_tensors_that_cannot_be_decoded_are_named(number: int, tmp_path: Path):
    kind = TENSOR_TYPES[number]
    columns = 2048  # whole blocks of any type
    raw = np.zeros((64, columns // kind.block_size * kind.block_bytes), np.uint8)
    fields = {"llama.attention.head_count": 128, "llama.attention.key_length": 16, "llama.attention.head_count_kv": 2}
    with pytest.raises(ModelRefused, match=rf"blk\.0\.attn_output\.weight has type {kind.name}, .*take .*Q4_K_M"):
        read(
            tmp_path, fields, blk_0_attn_output=(kind.name, raw), blk_0_attn_q=("F32", np.zeros((2048, 64), np.float32))
        )


def test_a_quantized_norm_is_rejected(tmp_path: Path):
    with pytest.raises(ModelRefused, match=r"output_norm\.weight has type Q8_0"):
        read(tmp_path, output_norm=("Q8_0", np.ones(64, np.float32)))


def test_a_tensor_that_the_model_does_not_have_is_rejected(tmp_path: Path):
    """Leaving out what belongs to the model would give wrong answers."""
    with pytest.raises(ModelRefused, match=r"contains the tensor blk\.0\.attn_sinks\.weight"):
        read(tmp_path, blk_0_attn_sinks=("F32", np.ones(4, np.float32)))
    with pytest.raises(ModelRefused, match=r"lacks the tensor token_embd\.weight"):
        read(tmp_path, token_embd=None)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")]
)
def test_auto_is_the_type_of_the_file_and_bfloat16_for_quantized_ones(kind: str, dtype: str, tmp_path: Path):
    file = tiny_gguf(tmp_path / "m.gguf", kind=kind)
    assert read_gguf(file, ModelConfig()).spec.dtype == dtype
    assert read_gguf(file, ModelConfig(dtype="float16")).spec.dtype == "float16"


def test_end_ids_are_those_of_the_file_and_of_known_tokens(tmp_path: Path):
    tokens = ["<|im_end|>", "a", "b", "c", "<|endoftext|>", "<|end|>", "d"]
    fields: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
    ids = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 3}
    assert read(tmp_path, fields | ids).eos_token_ids == (0, 1, 2, 3, 4, 5)
    # In gpt-oss <|end|> ends a part of an answer.
    tokens += ["<|return|>", "<|call|>"]
    assert read(tmp_path, fields | {"tokenizer.ggml.eos_token_id": 7}).eos_token_ids == (0, 4, 7, 8)


def test_sampling_defaults_are_those_of_the_file(tmp_path: Path):
    assert read(tmp_path).defaults == {}
    keys = gguf.Keys.General
    fields = {keys.SAMPLING_TEMP: 0.6, keys.SAMPLING_TOP_P: 0.95, keys.SAMPLING_TOP_K: 20, keys.SAMPLING_MIN_P: 0.1,
              keys.SAMPLING_PENALTY_REPEAT: 1.1}  # fmt: skip
    assert read(tmp_path, fields).defaults == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1,
    }  # fmt: skip


def test_a_sliding_window_is_that_of_all_layers_of_a_llama_only(tmp_path: Path):
    """Files of Qwen may name a window that the models do not use."""
    assert read(tmp_path, {"llama.attention.sliding_window": 8}).layers == (LayerSpec(window=8),) * 2
    assert read(tmp_path, {"qwen2.attention.sliding_window": 8}, "Qwen2").layers == (LayerSpec(),) * 2


def test_a_granite_may_have_no_rotary_embedding(tmp_path: Path):
    assert read(tmp_path, {"granite.rope.scaling.finetuned": False}, "Granite").ropes == (NO_ROPE,)


def test_a_granite_4_without_recurrent_layers_is_a_granite(tmp_path: Path):
    """llama.cpp's converter gives it a number of KV heads for each layer, and keys of layers that it does not have."""
    also = {
        "granite.attention.head_count_kv": [2, 2], "granite.rope.scaling.finetuned": True, "granite.expert_count": 0,
        "granite.ssm.state_size": 128, "granite.expert_shared_feed_forward_length": 96,
    }  # fmt: skip
    assert read(tmp_path, also, "Granite") == read(tmp_path, architecture="Granite")
    with pytest.raises(ModelRefused, match=r"head_count_kv is \(2, 0\)"):
        read(tmp_path, {"granite.attention.head_count_kv": [2, 0]}, "Granite")


def test_every_fourth_layer_of_smollm3_has_no_rotary_embedding(tmp_path: Path):
    spec = read(tmp_path, architecture="SmolLM3")
    assert spec.ropes == (RopeSpec(10000.0), NO_ROPE)
    assert [layer.rope for layer in spec.layers] == [0, 0, 0, 1, 0]


def test_fused_tensors_are_named_as_they_are_stored(tmp_path: Path):
    with pytest.raises(ModelRefused, match=r"lacks the tensor blk\.0\.attn_qkv\.weight"):
        read(tmp_path, architecture="Phi3", blk_0_attn_qkv=None)
    with pytest.raises(ModelRefused, match=r"blk\.0\.ffn_up\.weight has shape \[96, 64\]; .* must be \[192, 64\]"):
        read(tmp_path, architecture="Phi3", blk_0_ffn_up=("F32", np.zeros((96, 64), np.float32)))


def test_the_table_has_the_order_of_pairs_of_each_architecture():
    """As `llama_model_rope_type` in llama.cpp has it."""
    assert {name for name, family in GGUF_FAMILIES.items() if family.has_neighbour_pairs} == {
        "llama", "smollm3", "granite", "granitemoe", "glm4", "mistral3",
    }  # fmt: skip


@pytest.mark.parametrize("architecture", GGUF_FAMILIES)
def test_names_of_tensors_are_those_of_llama_cpp(architecture: str):
    """Of the names in a checkpoint, by the table of llama.cpp's converter; each name of a norm is one of the family."""
    family = GGUF_FAMILIES[architecture]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = {gguf.TENSOR_NAMES[tensor].format(bid=0) for tensor in gguf.MODEL_TENSORS[number]}
    stored = {stored_name(f"model.layers.0.{name}.weight", family.norms) for name in family.norms}
    assert {name.removesuffix(".weight") for name in stored} <= names
    norms = {name for name in names if name.endswith(("attn_norm", "ffn_norm", "attention_norm", "ffw_norm"))}
    assert {f"{name}.weight" for name in norms} == stored


def test_the_first_norm_of_seed_oss_is_not_one_of_what_attention_adds(tmp_path: Path):
    with pytest.raises(ModelRefused, match=r"lacks the tensor blk\.0\.post_attention_norm\.weight"):
        read(tmp_path, architecture="SeedOss", blk_0_post_attention_norm=None)
    assert read(tmp_path, architecture="SeedOss").block_norms is BlockNorms.BEFORE


@pytest.mark.parametrize(
    ("architecture", "fields", "words"),
    [
        ("Gemma2", {"gemma2.attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1.0; it must be a number"),
        ("Gemma3", {"gemma3.attention.sliding_window_pattern": [True] * 5}, "must say true or false for each of 6"),
        ("Gemma3", {"gemma3.attention.sliding_window_pattern": [0, 1, 2, 0, 1, 2]}, "must say true or false for each"),
        ("Glm4", {"glm4.rope.dimension_count": 7}, "dimension_count is 7; it must be even"),
        ("Glm4", {"glm4.rope.dimension_sections": [2, 3, 3, 0]}, "dimension_sections is .*this is not supported"),
        ("Glm4", {"glm4.nextn_predict_layers": 1}, "nextn_predict_layers is 1; this is not supported"),
        ("Mixtral", {"llama.expert_used_count": 7}, "expert_used_count is 7; there are only 6 experts"),
        ("Mixtral", {"llama.expert_count": 5}, r"ffn_gate_inp.weight has shape \[6, 64\]; .* must be \[5, 64\]"),
        ("Mixtral", {"llama.expert_count": None}, "lacks the tensor blk.0.ffn_gate.weight"),
        ("Qwen3Moe", {"qwen3moe.expert_gating_func": 2}, r"expert_gating_func is 2; supported is 1 \(softmax\)"),
        ("Qwen3Moe", {"qwen3moe.expert_feed_forward_length": 41}, r"ffn_gate_exps.weight has shape \[6, 40, 64\]"),
        ("Qwen2Moe", {"qwen2moe.expert_count": 60_000}, "is 60000, in 2 layers; there may be 100,000 experts"),
        ("GraniteMoe", {"granitemoe.expert_group_count": 2}, "groups of experts are not supported"),
        ("Llama", {"llama.attention.temperature_scale": 0.1}, "temperature_scale is .*; this is not supported"),
    ],
)  # fmt: skip
def test_what_these_families_do_not_have_is_rejected(
    architecture: str, fields: dict[str, Any], words: str, tmp_path: Path
):
    with pytest.raises(ModelRefused, match=words):
        read(tmp_path, fields, architecture)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("blk.1.ffn_gate_up_exps.weight", r"gates and ups of experts in one tensor \(blk\.1\.ffn_gate_up_exps"),
        ("blk.0.ffn_gate.0.weight", r"each expert in tensors of its own, as in old files \(blk\.0\.ffn_gate\.0"),
        ("blk.1.ffn_down.5.weight", "which is not supported; take a file with ffn_gate_exps and ffn_up_exps"),
    ],
)
def test_experts_that_are_stored_in_other_ways_are_named(name: str, words: str, tmp_path: Path):
    """Not as an incomplete file, which one would download again."""
    folder = tiny("Qwen3Moe")
    tensors = stored_tensors(folder, "Qwen3Moe")
    kind = tensors.pop("blk.1.ffn_gate_exps.weight")
    fields = model_fields(folder, "Qwen3Moe") | text_fields(folder)
    file = write_gguf(tmp_path / "m.gguf", fields, tensors | {name: kind})
    with pytest.raises(ModelRefused, match=words):
        read_gguf(file, ModelConfig())


def test_the_first_layers_of_a_mixture_may_have_no_experts(tmp_path: Path):
    dense = {f"blk_0_ffn_{name}_exps": None for name in ("gate", "up", "down")} | {"blk_0_ffn_gate_inp": None}
    matrices = {f"blk_0_ffn_{name}": ("F32", np.ones((96, 64), np.float32)) for name in ("gate", "up")}
    matrices["blk_0_ffn_down"] = ("F32", np.ones((64, 96), np.float32))
    fields = {"qwen3moe.leading_dense_block_count": 1, "qwen3moe.expert_weights_scale": 2.5}
    spec = read(tmp_path, fields, "Qwen3Moe", **dense, **matrices)
    assert [layer.has_experts for layer in spec.layers] == [False, True] and spec.mlp_width == 96
    assert spec.experts == ExpertSpec(6, 3, 40, is_normalized=True, scale=2.5)
