"""The benchmark `sampling`: factors over a plain step, and the parameters of its kinds."""

from __future__ import annotations

import pytest

from app import SamplingParams
from app.engine.schedule.row_sampling import RowSampling
from benchmarks.sampling import KINDS, PLAIN, Times, factors


def test_a_factor_is_the_median_of_ratios_to_the_plain_step_of_each_round():
    found = {PLAIN: [Times(1.0, 2.0), Times(2.0, 2.0), Times(4.0, 2.0)]}
    found["slow"] = [Times(2.0, 2.0), Times(3.0, 6.0), Times(4.0, 4.0)]
    assert factors(found) == {PLAIN: Times(1.0, 1.0), "slow": Times(1.5, 2.0)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_valid_parameters(kind: str):
    params = SamplingParams(**{"max_tokens": 1000, "seed": 1, "temperature": 1.0, **KINDS[kind]})
    assert RowSampling.of(params).has_penalties == (kind in ("penalties", "all together", "all, 20 logprobs"))
    assert params.logit_bias is None or len(params.logit_bias) == 300
