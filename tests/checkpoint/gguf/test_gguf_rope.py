"""The rotary embedding of a GGUF file, from its keys and from tensors with divisors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from app.contract.errors import ModelRefused
from tests.checkpoint.gguf.test_gguf_spec import read
from tests.gguf_writer import LONGROPE

FACTORS = np.arange(1, 7, dtype=np.float32)


def test_scaled_ropes(tmp_path: Path):
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    spec = read(tmp_path, scaling)
    (rope,) = spec.ropes
    assert (rope.kind, rope.factor, spec.max_position) == ("linear", 4.0, 2048)
    scaling |= {
        "llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.yarn_beta_fast": 16.0,
    }  # fmt: skip
    (rope,) = read(tmp_path, scaling).ropes
    assert (rope.kind, rope.original_max_position, rope.beta_fast, rope.beta_slow) == ("yarn", 128, 16.0, 1.0)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    (rope,) = read(tmp_path, scaling | {"llama.rope.scaling.attn_factor": 0.5}).ropes
    assert rope.attention_factor == pytest.approx((0.1 * math.log(4) + 1) / 2)


def test_the_scale_of_a_yarn_is_that_of_the_config_it_was_converted_from(tmp_path: Path):
    """llama.cpp's converter copies `attention_factor`; 1 stands for none. Only Ministral 3 has a multiplier."""
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    for given, wanted in ((None, 0.1 * math.log(4) + 1), (1.0, 0.1 * math.log(4) + 1), (1.5, 1.5)):
        (rope,) = read(tmp_path, yarn | {"llama.rope.scaling.yarn_attn_factor": given}).ropes
        assert rope.attention_factor == pytest.approx(wanted)
    for given, wanted in (
        (1.0, 1.0),
        (0.0, 0.1 * math.log(32) + 1),
        (2.0, (0.1 * math.log(32) + 1) / (0.2 * math.log(32) + 1)),
    ):
        (rope,) = read(tmp_path, {"mistral3.rope.scaling.yarn_log_multiplier": given}, "Ministral3").ropes
        assert rope.attention_factor == pytest.approx(wanted)


def test_a_part_of_a_head_may_turn_in_pairs_of_neighbours(tmp_path: Path):
    (rope,) = read(tmp_path, architecture="Glm4").ropes
    assert (rope.kind, rope.rotary_dim, rope.has_neighbour_pairs) == ("default", 8, True)
    (rope,) = read(tmp_path, {"glm4.rope.dimension_count": 16}, "Glm4").ropes
    assert (rope.rotary_dim, rope.has_neighbour_pairs) == (None, True)


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_type_is_linear_scaling(key: str, tmp_path: Path):
    """As in llama.cpp, which reads the older name of the factor as well, and takes 0 for none."""
    spec = read(tmp_path, {f"llama.{key}": 8.0})
    (rope,) = spec.ropes
    assert (rope.kind, rope.factor, spec.max_position) == ("linear", 8.0, 4096)
    for plain in (
        {f"llama.{key}": 1.0},
        {f"llama.{key}": 0.0},
        {f"llama.{key}": 8.0, "llama.rope.scaling.type": "none"},
    ):
        assert read(tmp_path, plain) == read(tmp_path)
    with pytest.raises(ModelRefused, match=r"rope\.scaling\.type is linear, beside the tensor"):
        read(tmp_path, {f"llama.{key}": 8.0}, rope_freqs=("F32", np.ones(8, np.float32)))
    with pytest.raises(ModelRefused, match=rf"{key} is -8\.0; it must be a number above"):
        read(tmp_path, {f"llama.{key}": -8.0})


def test_the_newer_name_of_the_factor_wins(tmp_path: Path):
    factors = {"llama.rope.scaling.factor": 2.0, "llama.rope.scale_linear": 8.0}
    for fields in (factors, factors | {"llama.rope.scaling.type": "linear"}):
        (rope,) = read(tmp_path, fields).ropes
        assert (rope.kind, rope.factor) == ("linear", 2.0)
    (rope,) = read(tmp_path, {"llama.rope.scale_linear": 8.0, "llama.rope.scaling.type": "yarn"}).ropes
    assert (rope.kind, rope.factor) == ("yarn", 8.0)


def test_the_factor_of_attention_counts_with_every_kind(tmp_path: Path):
    divisors = {"rope_freqs": ("F32", np.ones(8, np.float32))}
    for fields, tensors in (({}, {}), ({"llama.rope.scaling.factor": 8.0}, {}), ({}, divisors)):
        (rope,) = read(tmp_path, {"llama.rope.scaling.attn_factor": 0.5} | fields, **tensors).ropes
        assert rope.attention_factor == 0.5


def test_divisors_of_the_frequencies_are_read(tmp_path: Path):
    values = np.arange(1, 9, dtype=np.float32)
    (rope,) = read(tmp_path, rope_freqs=("F32", values)).ropes
    assert (rope.kind, rope.divisors) == ("divisors", tuple(values.tolist()))
    for wrong in (-values, values * math.inf, values[:7], np.zeros(8, np.float32)):
        with pytest.raises(ModelRefused, match=r"rope_freqs\.weight"):
            read(tmp_path, rope_freqs=("F32", wrong))
    with pytest.raises(ModelRefused, match=r"rope\.scaling\.type is yarn, beside the tensor"):
        read(tmp_path, {"llama.rope.scaling.type": "yarn"}, rope_freqs=("F32", values))


def test_the_divisors_of_longrope_are_the_long_ones_where_sequences_may_be_long(tmp_path: Path):
    """The original length is 128; one choice holds for all sequences, so that cached keys stay valid."""
    for max_model_len, name in ((None, "long_factor"), (129, "long_factor"), (128, "short_factor")):
        (rope,) = read(tmp_path, architecture="Phi3", max_model_len=max_model_len).ropes
        assert (rope.kind, rope.rotary_dim, rope.divisors) == ("divisors", 12, tuple(LONGROPE[name]))
        assert (rope.attention_factor, rope.original_max_position) == (1.25, 128)


def test_a_phi_without_divisors_turns_by_plain_frequencies(tmp_path: Path):
    missing = dict.fromkeys(("rope_factors_long", "rope_factors_short"))
    (rope,) = read(tmp_path, architecture="Phi3", **missing).ropes
    assert (rope.kind, rope.rotary_dim) == ("default", 12)
    (rope,) = read(tmp_path, {"phi3.rope.dimension_count": None}, "Phi3", **missing).ropes
    assert (rope.kind, rope.rotary_dim) == ("default", None)


def test_wrong_longropes_are_rejected_by_name(tmp_path: Path):
    for fields, tensors, words in (
        ({}, {"rope_factors_long": None}, r"needs the tensor rope_factors_long\.weight, which is missing"),
        ({}, {"rope_factors_short": ("F32", FACTORS[:5])}, r"rope_factors_short\.weight has type F32 and shape \[5\]"),
        ({}, {"rope_factors_short": ("F32", -FACTORS)}, r"rope_factors_short\.weight holds other values"),
        ({"phi3.rope.dimension_count": 18}, {}, r"rope\.dimension_count is 18; it must be an integer between 2 and 16"),
        ({"phi3.rope.dimension_count": 11}, {}, r"rope\.dimension_count is 11; it must be even"),
        ({"phi3.rope.scale_linear": 8.0}, {}, r"is 'linear', because there is a rope\.scale_linear and no type; supp"),
        (
            {"phi3.rope.scaling.type": "longrope", "phi3.rope.scaling.factor": 4.0},
            {},
            r"factor is not 1, beside longrope",
        ),
        ({"phi3.rope.scaling.type": "yarn"}, {}, r"rope\.scaling\.type is 'yarn'; supported are none and longrope"),
    ):
        with pytest.raises(ModelRefused, match=words):
            read(tmp_path, fields, "Phi3", **tensors)
    with pytest.raises(ModelRefused, match=r"contains the tensor rope_factors_long\.weight, which a LlamaForCausalLM"):
        read(tmp_path, rope_factors_long=("F32", FACTORS))
