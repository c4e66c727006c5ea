"""The shapes of dummies: what Quire reads of their files, and the types that `llama-quantize` chooses."""

import pytest

from benchmarks.cpu.gguf.dummies import DUMMIES, has_more_bits

# Millions of weights, as the models' configurations give them: 8 of 48 layers, 4 of 32, and two whole models.
MILLIONS = {"qwen3moe": 5606, "mixtral": 6067, "gemma3": 1000, "olmo2": 1485}


@pytest.mark.parametrize("name", DUMMIES)
def test_shapes_have_as_many_weights_as_the_real_ones(name):
    total = 0
    for tensor in DUMMIES[name].tensors("BF16"):
        count = 1
        for size in tensor.shape:
            count *= size
        total += count
    assert total / 1e6 == pytest.approx(MILLIONS[name], rel=0.001)


def test_half_of_the_layers_of_q4_k_m_have_more_bits_for_some_matrices():
    assert sum(has_more_bits(index, 8) for index in range(8)) == 4
    kinds = {tensor.name: tensor.kind for tensor in DUMMIES["qwen3moe"].tensors("Q4_K_M")}
    assert [kinds[f"blk.{index}.ffn_down_exps.weight"] for index in range(4)] == ["Q6_K", "Q4_K", "Q4_K", "Q6_K"]
    assert kinds["output.weight"] == "Q6_K" and kinds["token_embd.weight"] == "Q4_K"
    assert kinds["blk.0.ffn_gate_inp.weight"] == kinds["blk.0.attn_norm.weight"] == "F32"


def test_eight_experts_have_more_bits_in_attention():
    kinds = {tensor.name: tensor.kind for tensor in DUMMIES["mixtral"].tensors("Q4_K_M")}
    names = ("attn_q", "attn_k", "attn_v", "attn_output")
    assert [kinds[f"blk.1.{name}.weight"] for name in names] == ["Q4_K", "Q8_0", "Q8_0", "Q5_K"]


def test_columns_that_are_no_whole_blocks_have_other_types():
    kinds = {tensor.name: tensor.kind for tensor in DUMMIES["gemma3"].tensors("Q4_K_M")}
    assert kinds["token_embd.weight"] == "Q8_0" and "output.weight" not in kinds
    assert kinds["blk.0.ffn_gate.weight"] == "Q5_0" and kinds["blk.0.ffn_down.weight"] == "Q6_K"
    assert {tensor.kind for tensor in DUMMIES["gemma3"].tensors("BF16")} == {"BF16", "F32"}
