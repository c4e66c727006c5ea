"""Tensors that are stored under other names, or as rows of one tensor, are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.expert_names import ExpertNames
from app.checkpoint.hf_config import read_model
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_names import StoredRows, TensorNames
from app.checkpoint.tensor_types import TensorType
from app.contract.errors import ModelRefused
from tests.checkpoints import config_json

SHAPES = {
    "model.embed_tokens.weight": (7, 4),
    "model.layers.0.mlp.gate_proj.weight": (6, 4),
    "model.layers.0.mlp.up_proj.weight": (5, 4),
    "model.layers.0.mlp.up_proj.bias": (5,),
    "model.layers.10.mlp.up_proj.weight": (5, 4),
}
NAMES = TensorNames({"mlp.gate_proj": "mlp.both", "mlp.up_proj": "mlp.both"})
FILE = Path("model/model.safetensors")


def test_tensors_keep_their_names_where_none_is_given():
    assert TensorNames().locate(SHAPES) == {name: StoredRows(name, 0, shape[0]) for name, shape in SHAPES.items()}


def test_tensors_of_one_stored_name_follow_one_another_in_it():
    assert NAMES.locate(SHAPES) == {
        "model.embed_tokens.weight": StoredRows("model.embed_tokens.weight", 0, 7),
        "model.layers.0.mlp.gate_proj.weight": StoredRows("model.layers.0.mlp.both.weight", 0, 11),
        "model.layers.0.mlp.up_proj.weight": StoredRows("model.layers.0.mlp.both.weight", 6, 11),
        "model.layers.0.mlp.up_proj.bias": StoredRows("model.layers.0.mlp.both.bias", 0, 5),
        "model.layers.10.mlp.up_proj.weight": StoredRows("model.layers.10.mlp.both.weight", 0, 5),
    }


EXPERTS = {
    f"model.layers.3.mlp.experts.{expert}.{module}_proj.weight": shape
    for expert in range(3)
    for module, shape in (("gate", (4, 8)), ("up", (4, 8)), ("down", (8, 4)))
}
STACKED = TensorNames(experts=ExpertNames(gate="moe.both", up="moe.both", down="moe.down.weight"))
NUMBERED = TensorNames(
    experts=ExpertNames(gate="moe.*.w1.weight", up="moe.*.w3.weight", down="moe.*.w2.weight"),
    other=STACKED,
)


def test_experts_lie_in_one_tensor_one_after_the_other_or_each_in_its_own():
    stacked, numbered = STACKED.locate(EXPERTS), NUMBERED.locate(EXPERTS)
    layer = "model.layers.3."
    assert stacked[f"{layer}mlp.experts.2.gate_proj.weight"] == StoredRows(f"{layer}moe.both", 16, 24, 3)
    assert stacked[f"{layer}mlp.experts.2.up_proj.weight"] == StoredRows(f"{layer}moe.both", 20, 24, 3)
    assert stacked[f"{layer}mlp.experts.1.down_proj.weight"] == StoredRows(f"{layer}moe.down.weight", 8, 24, 3)
    assert {place.stored_shape(8) for name, place in stacked.items() if "gate" in name} == {(3, 8, 8)}
    assert numbered[f"{layer}mlp.experts.2.up_proj.weight"] == StoredRows(f"{layer}moe.2.w3.weight", 0, 4)
    assert NUMBERED.locate(EXPERTS, [f"{layer}moe.both"]) == stacked
    assert NUMBERED.locate(EXPERTS, [f"{layer}moe.0.w1.weight"]) == numbered


def test_rows_of_a_tensor_of_experts_are_counted_through_all_of_them():
    whole = StoredTensor(FILE, TensorType("BF16", 1, 2), (3, 8, 8), 1000, 1000 + 3 * 8 * 8 * 2)
    part = whole.rows(20, 4)
    assert (part.shape, part.begin, part.end) == ((4, 8), 1000 + 20 * 16, 1000 + 24 * 16)


def entry(*shape: int) -> StoredTensor:
    """An entry at byte 1000."""
    size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    return StoredTensor(FILE, TensorType("BF16", 1, 2), shape, 1000, 1000 + size)


def phi(**changed: StoredTensor | None) -> Checkpoint:
    """A tiny Phi-3 with fused tensors; `changed` replaces those of layer 0, or leaves them out."""
    config = config_json("Phi3", num_hidden_layers=1, torch_dtype="bfloat16")
    layer = {
        "self_attn.qkv_proj": entry(128, 64), "self_attn.o_proj": entry(64, 64), "mlp.gate_up_proj": entry(192, 64),
        "mlp.down_proj": entry(64, 96), "input_layernorm": entry(64), "post_attention_layernorm": entry(64),
    }  # fmt: skip
    layer |= {name.replace("__", "."): value for name, value in changed.items()}
    tensors = {f"model.layers.0.{name}.weight": value for name, value in layer.items() if value is not None}
    ends = {"model.embed_tokens.weight": entry(307, 64), "lm_head.weight": entry(307, 64)}
    return Checkpoint(Path("model"), config, {}, tensors | ends | {"model.norm.weight": entry(64)}, "0")


def test_a_checkpoint_has_an_entry_for_each_of_the_tensors_in_a_fused_one():
    found = read_model(phi())[0].tensors
    assert found is not None
    stored, row = entry(128, 64), 2 * 64
    for name, first, count in (("q", 0, 64), ("k", 64, 32), ("v", 96, 32)):
        begin = 1000 + first * row
        expected = replace(stored, shape=(count, 64), begin=begin, end=begin + count * row)
        assert found[f"model.layers.0.self_attn.{name}_proj.weight"] == expected
    assert found["model.layers.0.mlp.up_proj.weight"].begin == 1000 + 96 * row


def test_a_fused_tensor_is_named_in_errors_as_it_is_stored():
    for changed, words in (
        ({"self_attn__qkv_proj": None}, ("lacks the tensor", "self_attn.qkv_proj.weight")),
        ({"mlp__gate_up_proj": entry(191, 64)}, ("gate_up_proj", "[191, 64]", "[192, 64]")),
        ({"mlp__gate_up_proj": replace(entry(192, 64), type=TensorType("I8", 1, 1))}, ("gate_up_proj", "I8")),
    ):
        with pytest.raises(ModelRefused) as rejection:
            read_model(phi(**changed))
        assert all(word in rejection.value.message for word in words), rejection.value.message
