"""The verdicts of the benchmark `fairness`: by the slowest request on `guide`, by the median on `long`."""

import pytest

from benchmarks.fairness import Run


@pytest.mark.parametrize(
    ("model", "beside", "num_rejected", "is_met"),
    [
        ("guide", [0.1, 0.9, 1.0], 0, True),
        ("guide", [0.1, 0.1, 1.2], 0, False),
        ("guide", [0.1], 1, False),
        ("long", [0.1, 0.3, 5.0], 0, True),
        ("long", [0.1, 0.31, 0.4], 0, False),
        ("long", [], 1, False),
    ],
)
def test_a_run_is_judged_by_its_models_limit(model, beside, num_rejected, is_met):
    run = Run(model, "starts", "keys", [0.1, 0.1, 0.2], beside, num_rejected)
    assert all(verdict.is_met for verdict in run.verdicts) is is_met
