"""Figures: limits and shares in their unit, the JSON round trip, claims, and the table."""

import json

import pytest

from app.observe.terminal import Terminal
from benchmarks.figures import write_json
from benchmarks.gpu.bounds import H200, Ceilings, Work
from benchmarks.gpu.claims import claims, verdicts
from benchmarks.gpu.figures import COPY, Figure, Results, SectionResult
from benchmarks.gpu.report import report
from benchmarks.limits import limits
from tests.benchmarks.gpu.samples import sample_results

ROUND = Ceilings(1e12, 1e15)


def test_limits_and_shares_of_times_and_rates():
    time = Figure("step", "ms", (4.0, 2.0), (Work(1e9),))
    assert (time.median, time.limit(ROUND), time.share(ROUND)) == (3.0, 1.0, pytest.approx(1 / 3))
    rate = Figure("load", "tok/s", (50.0,), (Work(1e12), Work(0, 1e15)), amount=200)
    assert (rate.limit(ROUND), rate.share(ROUND)) == (100.0, 0.5)
    assert Figure("x", "tok/s", (1.0,)).limit(ROUND) is None
    assert Figure("x", "us", (2.0,), (Work(1, 4e9),)).operations_rate == 2e15
    assert rate.operations_rate is None


def test_measured_ceilings_are_used_if_there_are_any():
    results = sample_results()
    assert results.ceilings == (4.3e12, 790e12)
    del results.sections["S0"]
    assert results.ceilings == H200


def test_results_survive_a_json_round_trip(tmp_path):
    file = tmp_path / "gpu.json"
    results = sample_results()
    write_json(file, results.to_json())
    found = Results.load(file)
    assert found.sections == json.loads(json.dumps(found.to_json())) or found.to_json()["sections"]
    assert found.sections["S4"].figures[0].work == results.sections["S4"].figures[0].work
    assert found.value("S0", COPY) == 4300
    assert found.sections["S7"].left_out == results.sections["S7"].left_out
    assert Results.load(tmp_path / "none.json").sections == {}
    assert [each.name for each in tmp_path.iterdir()] == ["gpu.json"]


def met(results: Results) -> dict[str, bool | None]:
    """Whether each claim is met; None without a measurement or a limit."""
    return {claim.what: verdict and verdict.is_met for claim in claims() for verdict in [claim.verdict(results)]}


def test_every_limit_belongs_to_a_claim():
    assert {claim.what for claim in claims() if claim.limit} == set(limits("gpu"))


def test_claims_are_met_missed_or_not_measured():
    found = met(sample_results())
    assert found["Qwen3-0.6B: time per token, batch 1, 1k"] is True
    assert found["Qwen3-0.6B, 256 requests"] is True
    assert found["Llama-3.1-8B, 256 requests"] is False
    assert found["Qwen3-8B, 256 x 1024/1024"] is None
    assert found["Qwen3-0.6B: times transformers continuous batching"] is True
    assert found["Qwen3-0.6B: times transformers generate, one by one"] is True
    assert found["Llama-3.1-8B: cost of deterministic mode"] is True
    assert found["decode attention, bf16, D = 128, 64k tokens and more: worst"] is False
    assert found["prefill attention, causal, 8k, D = 128"] is True
    assert found["Llama-3.1-8B: 256 streams keep of offline throughput"] is True
    assert found["Llama-3.1-8B: process start to first token"] is True
    assert found["one launch against two, and repeats: differences"] is True
    missed = [verdict.limit.name for verdict in verdicts(sample_results()) if verdict.is_missed]
    assert missed == [what for what, is_met in found.items() if is_met is False]
    assert set(met(Results()).values()) == {None}


def test_derived_values_are_computed_from_figures():
    values = {claim.what: claim.value(sample_results()) for claim in claims()}
    assert values["Qwen3-0.6B: times transformers continuous batching"] == 5.0
    assert values["Llama-3.1-8B: cost of deterministic mode"] == pytest.approx(10.0)
    assert values["a kernel behind another one"] == 1.5
    assert values["decode attention of 256 x 1k: 4 splits, times 1"] == pytest.approx(1.1)
    assert values["decode attention of 256 x 1k: deterministic, times plain"] is None
    assert values["decode attention, bf16, D = 128, 64k tokens and more: worst"] == pytest.approx(50.0)
    assert values["prefill attention, causal, 8k, D = 128"] == pytest.approx(400.0)
    assert values["Llama-3.1-8B: 256 streams keep of offline throughput"] == pytest.approx(96.67, abs=0.01)


def test_the_table_has_limits_verdicts_and_missing_rows():
    lines = report(sample_results(), Terminal())
    text = "\n".join(lines)
    assert text.index("S0: ceilings") < text.index("S3: decode") < text.index("S4: offline") < text.index("S1: ")
    (row,) = [line for line in lines if line.startswith("Qwen3-0.6B, 256 requests ")][:1]
    assert "28,500 (28,000-29,000)" in row and "36,3" in row and "78%" in row and "two turns" in row
    (row,) = [line for line in lines if line.startswith("Llama-3.1-8B, 256 requests") and "at least 10,200" in line]
    assert "MISSED" in row
    assert "memcheck: not measured" in text and "not measured: compute-sanitizer is not installed here" in text
    assert "  400" in text
    assert "28,000-31,000" in text
    assert report(Results(), Terminal()) == []


def test_a_failure_is_shown_by_its_last_line():
    section = SectionResult("S3", failures={"Qwen3-4B": "Traceback (most recent call last):\n  File\nRuntimeError: no"})
    assert "not measured: RuntimeError: no" in "\n".join(report(Results({}, {"S3": section}), Terminal()))
