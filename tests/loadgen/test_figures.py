"""Figures of answers with known times."""

import math

import pytest

from app.loadgen.figures import figures_of, peak, percentile
from tests.loadgen.fakes import make_answer, make_figures, make_run


def test_percentiles_are_interpolated_linearly():
    values = [10.0, 20.0, 30.0, 40.0, 50.0]
    assert [percentile(values, share) for share in (0, 0.25, 0.5, 0.6, 1)] == [10, 20, 30, pytest.approx(34), 50]
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.5) == 0.0


def test_times_are_those_of_completed_answers_in_milliseconds():
    found = make_figures(
        2.0,
        make_answer(0.0, (0.1, 0.2, 0.4)),
        make_answer(1.0, (0.3, 0.4, 0.5), output_tokens=5),
        make_answer(1.0, (9.0,), status="cancelled", ended=10.0),
        make_answer(1.0, (9.0,), status="failed", ended=10.0, error="cut"),
    )
    assert found.values["ttft"] == pytest.approx([100, 300])
    assert found.values["itl"] == pytest.approx([100, 100, 100, 200])
    assert found.values["tpot"] == pytest.approx([50, 150])
    assert found.values["e2e"] == pytest.approx([400, 500])
    spread = found.spread("itl")
    assert spread is not None
    assert spread._asdict() == pytest.approx({"mean": 125, "p50": 100, "p95": 185, "p99": 197})


def test_rates_are_per_second_until_the_end_of_the_last_answer():
    answers = [make_answer(0.0), make_answer(0.5), make_answer(1.0, status="failed", ended=3.0, error="cut")]
    found = make_figures(2.0, *answers, ended=4.0)
    assert found.seconds == 4.0
    assert found.requests_per_s == pytest.approx(2 / 4)
    assert found.output_per_s == pytest.approx(6 / 4)
    assert found.total_per_s == pytest.approx((6 + 20) / 4)


def test_completed_failed_and_cancelled_requests_are_counted():
    failures = [make_answer(status="failed", error=error, message=error.upper()) for error in ("cut", "503", "503")]
    cancelled = make_answer(status="cancelled", output_tokens=None)
    found = make_figures(2.0, make_answer(), *failures, cancelled, make_answer(status="open"))
    assert (found.completed, found.failed, found.cancelled) == (1, 3, 1)
    assert list(found.errors.items()) == [("503", 2), ("cut", 1)]
    assert found.first_error == "CUT"
    assert (found.output_tokens, found.prompt_tokens, found.cancelled_tokens) == (3, 10, 3)


def test_lateness_and_cpu_share_of_the_client_are_measured():
    late = make_answer()
    late.sent += 0.002
    late.connected = late.sent + 0.003
    found = make_figures(2.0, late, ended=4.0, cpu_s=1.0)
    assert found.late_p99_ms == pytest.approx(2)
    assert found.connect_p99_ms == pytest.approx(3)
    assert found.client_share == pytest.approx(0.25)


def test_a_request_that_could_not_be_sent_when_due_counts_as_held():
    held = make_answer(1.0)
    held.ready = held.sent = 1.5
    assert make_figures(2.0, make_answer(0.0), held).held == 1


def test_the_peak_is_the_maximum_number_of_open_requests():
    assert peak([make_answer(start, (1.0,)) for start in (0.0, 0.5, 0.9, 3.0)]) == 3
    assert peak([make_answer(start, (1.0,)) for start in (0.0, 1.0, 2.0)]) == 1, "one ends as the next begins"
    assert peak([]) == 0


def test_has_usage_requires_counts_in_every_answer():
    assert make_figures().has_usage
    assert not make_figures(2.0, make_answer(), make_answer(output_tokens=None)).has_usage


def test_figures_without_completed_answers_have_no_times():
    found = figures_of(make_run(make_answer(times=(), status="failed", error="cut")), math.inf)
    assert [found.spread(kind) for kind in ("ttft", "tpot", "itl", "e2e")] == [None] * 4
    assert (found.requests_per_s, found.output_per_s, found.has_usage) == (0, 0, False)


def test_the_json_has_every_figure_but_no_raw_values():
    found = make_figures(math.inf).to_json()
    assert found["rate"] == "inf"
    assert found["requests_per_s"] == pytest.approx(3 / 1.4)
    assert found["ttft_ms"] == pytest.approx({"mean": 100, "p50": 100, "p95": 100, "p99": 100})
    assert "values" not in found
