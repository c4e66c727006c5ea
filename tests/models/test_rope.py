"""Rotary tables compared with transformers; scaled frequencies do not depend on the sequence length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from app.checkpoint.checkpoint_folder import Checkpoint
from app.checkpoint.spec import NO_ROPE, ModelSpec, QueryScale, RopeSpec
from app.models.rope import head_order, inverse_frequencies, query_scales, rope_table
from tests.checkpoint.reading import read_spec
from tests.checkpoints import config_json

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3 of a short original": LLAMA3 | {"original_max_position_embeddings": 64, "factor": 32.0},
    "yarn": YARN,
    "yarn without truncation": YARN | {"truncate": False},
    "yarn with betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with mscale": YARN | {"mscale": 0.707, "mscale_all_dim": 1.0},
    "yarn with its own factor": YARN | {"attention_factor": 1.25},
    "yarn of a tiny original": YARN | {"original_max_position_embeddings": 8},
}


def make_configs(rope: dict[str, Any], theta: float, head_dim: int) -> tuple[ModelSpec, LlamaConfig]:
    """The same rotary embedding as our spec and as a transformers config."""
    fields = {"head_dim": head_dim, "max_position_embeddings": 16384}
    config = config_json("Llama", rope_theta=theta, rope_scaling=rope, **fields)
    ours = read_spec(Checkpoint(Path("model"), config, {}, None, "0"))
    return ours, LlamaConfig(rope_parameters={**rope, "rope_theta": theta}, **fields)


@pytest.mark.parametrize(("theta", "head_dim"), [(10000.0, 64), (500000.0, 128), (1e6, 24), (100.0, 2), (1e4, 80)])
@pytest.mark.parametrize("name", CASES)
def test_frequencies_equal_those_of_transformers_bit_for_bit(name: str, theta: float, head_dim: int):
    ours, theirs = make_configs(CASES[name], theta, head_dim)
    if name == "default":
        expected, attention_factor = LlamaRotaryEmbedding.compute_default_rope_parameters(theirs)
    else:
        expected, attention_factor = ROPE_INIT_FUNCTIONS[CASES[name]["rope_type"]](theirs)
    assert torch.equal(inverse_frequencies(ours.ropes[0], head_dim), expected)
    assert ours.ropes[0].attention_factor == pytest.approx(attention_factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_table_equals_that_of_transformers_at_every_position(dtype: torch.dtype):
    ours, theirs = make_configs(YARN, 10000.0, 16)
    cos, sin = LlamaRotaryEmbedding(theirs)(torch.zeros(1, dtype=dtype), torch.arange(3000)[None])
    table = rope_table(ours.ropes[0], 16, 3000, dtype)
    assert table.dtype == dtype and table.shape == (3000, 16)
    torch.testing.assert_close(table[:, :8], cos[0, :, :8], rtol=0, atol=1e-6)
    torch.testing.assert_close(table[:, 8:], sin[0, :, :8], rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", [RopeSpec(1e4), RopeSpec(1e4, "yarn", 4.0, 64), RopeSpec(1e4, "linear", 2.0, 64)])
def test_a_longer_table_begins_with_the_shorter_one(spec: RopeSpec):
    """Cached keys stay correct however long a sequence gets."""
    assert torch.equal(rope_table(spec, 32, 700, torch.float32)[:100], rope_table(spec, 32, 100, torch.float32))


def test_pairs_that_turn_stand_half_a_head_apart_and_the_others_have_the_angle_0():
    part = RopeSpec(1e4, rotary_dim=6)
    assert head_order(part, 10) == [0, 1, 2, 6, 7, 3, 4, 5, 8, 9] and head_order(RopeSpec(1e4), 10) is None
    cos, sin = rope_table(part, 10, 50, torch.float32).chunk(2, dim=-1)
    whole = rope_table(RopeSpec(1e4), 6, 50, torch.float32)
    assert torch.equal(torch.cat([cos[:, :3], sin[:, :3]], -1), whole)
    assert (cos[:, 3:] == 1).all() and (sin[:, 3:] == 0).all()
    cos, sin = rope_table(NO_ROPE, 10, 50, torch.float32).chunk(2, dim=-1)
    assert (cos == 1).all() and (sin == 0).all()


def test_neighbours_that_turn_together_stand_half_a_head_apart():
    part = RopeSpec(1e4, rotary_dim=6, has_neighbour_pairs=True)
    assert head_order(part, 10) == [0, 2, 4, 6, 7, 1, 3, 5, 8, 9]
    assert head_order(RopeSpec(1e4, has_neighbour_pairs=True), 6) == [0, 2, 4, 1, 3, 5]


def test_scales_of_queries_are_those_of_transformers_and_none_where_all_are_1():
    spec = replace(make_configs(YARN, 1e4, 16)[0], query_scale=QueryScale(16, 0.3))
    scales = query_scales(spec, 100)
    expected = get_llama_4_attn_scale(torch.arange(100)[None], 0.3, 16)[0, 0, :, 0]
    assert scales is not None and torch.equal(scales, expected)
    assert (scales[:16] == 1).all() and (scales[16:] > 1).all()
    assert query_scales(spec, 16) is None and query_scales(spec, 17) is not None
    assert query_scales(replace(spec, query_scale=None), 100) is None


def test_divisors_divide_the_frequencies():
    divisors = (1.0, 2.0, 4.0)
    expected = inverse_frequencies(RopeSpec(1e4), 6) / torch.tensor(divisors)
    found = inverse_frequencies(RopeSpec(1e4, "divisors", divisors=divisors), 6)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_divisors_scale_as_llama3_does():
    """GGUF files contain the divisors that follow from the parameters of llama3."""
    llama3 = RopeSpec(500000.0, "llama3", 8.0, 8192, 1.0, 4.0)
    wanted = inverse_frequencies(llama3, 128)
    divisors = inverse_frequencies(RopeSpec(500000.0), 128) / wanted
    found = inverse_frequencies(RopeSpec(500000.0, "divisors", divisors=tuple(divisors.tolist())), 128)
    assert torch.allclose(found, wanted, rtol=1e-6, atol=0) and divisors.max() == 8
