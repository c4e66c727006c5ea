"""Shares and differences with their intervals."""

import pytest

from app.config.recommendations import recommendation
from app.contract.sampling_params import SamplingParams
from benchmarks.defaults.parameter_sets import OFF, SETS, difference, share_of
from benchmarks.defaults.questions import QUESTIONS


def test_the_first_set_is_the_publishers_and_all_can_be_asked_for():
    row = recommendation("LlamaForCausalLM", ("SmolLM2-135M-Instruct",))
    assert next(iter(SETS.values())) == row.values
    assert len({SamplingParams(**(OFF | values)) for values in SETS.values()}) == len(SETS)


def test_a_share_has_wilsons_interval():
    assert share_of(149, 200) == pytest.approx((0.745, 0.6804, 0.8003), abs=1e-4)
    assert share_of(0, 10).low == pytest.approx(0)


def test_a_difference_is_paired_by_question():
    default = [0.2, 1.0] * (len(QUESTIONS) // 2)
    better = [share + 0.1 for share in default]
    assert difference(better, default) == pytest.approx((0.1, 0.1, 0.1))
    one = [share + (0.8 if index == 0 else 0) for index, share in enumerate(default)]
    assert difference(one, default) == pytest.approx((0.02, -0.0205, 0.0605), abs=1e-3)
