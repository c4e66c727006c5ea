"""Figures computed from measured values: medians, the best peer, missed limits; and the JSON."""

import json

import pytest

from benchmarks.cpu.cells import Cell
from benchmarks.cpu.figures import CellFigures, Figures, Ratio
from benchmarks.limits import limits
from tests.benchmarks.cpu.samples import ABOUT, CELL, sample_cell, sample_figures

REQUIRED = limits("cpu")["s135 bf16 batch 8 decode"]


def test_the_ratio_is_that_of_medians_to_the_better_peer():
    ratio = sample_cell(Quire=900.0, llama=290.0, vLLM=300.0).ratio("decode")
    assert ratio == Ratio("s135 bf16 batch 8 decode", "vLLM", 3.0, REQUIRED)
    assert ratio.is_met and REQUIRED.value == 2.6


def test_a_ratio_below_the_required_one_is_missed():
    assert not Ratio("", "vLLM", 2.599, REQUIRED).is_met
    assert Ratio("", "vLLM", 2.6, REQUIRED).is_met
    assert Ratio("", "", 0.1, None).is_met
    assert str(Ratio("x", "vLLM", 1.6, None)) == "x is 1.60 times vLLM"


@pytest.mark.parametrize("medians", [{"Quire": 1.0}, {"llama": 1.0}, {}])
def test_without_quire_or_peers_there_is_no_ratio(medians):
    assert sample_cell(**medians).ratio("decode") is None


def test_a_side_without_rates_was_not_measured():
    cell = sample_cell(vLLM=1.0, Quire=1.0)
    cell.rates["llama.cpp"] = []
    assert cell.sides == ["Quire", "vLLM"]


def test_the_median_is_that_of_all_rounds():
    cell = sample_cell(Quire=10.0)
    assert (cell.median("Quire", "decode"), cell.values("Quire", "decode")) == (10.0, [9.0, 10.0, 12.0])


def test_shares_show_the_limiting_resource():
    alone, many = (sample_cell(Cell("s135", "bf16", batch), Quire=rate) for batch, rate in ((1, 125.0), (32, 1250.0)))
    assert alone.shares("decode").of_read == pytest.approx(0.9, abs=0.01)
    assert alone.shares("decode").of_compute < 0.1
    assert many.shares("decode").of_compute == pytest.approx(0.72, abs=0.01)
    assert many.shares("decode").of_limit == pytest.approx(0.84, abs=0.01)


def test_a_missed_ratio_has_a_verdict():
    (missed,) = [verdict for verdict in sample_figures().verdicts() if verdict.is_missed]
    assert (missed.limit.name, missed.what, missed.figure) == ("s135 bf16 batch 8 prefill", "beside vLLM", 1.0)


def test_the_machine_is_that_of_the_last_probed_cell():
    figures = Figures({})
    assert figures.machine is None
    figures.cells = [CellFigures(Cell("q05", "bf16", 1)), sample_cell(Cell("tiny", "bf16", 1)), sample_cell(CELL)]
    assert figures.machine == figures.cells[2].machine


def test_the_json_has_every_value():
    found = json.loads(json.dumps(sample_figures().to_json()))
    first, second = found["cells"]
    assert first["tokens_per_second"]["llama.cpp"]["decode"] == [261.0, 290.0, 348.0]
    assert first["verdicts"]["prefill"] == {"best_peer": "vLLM", "ratio": 1.0, "required": 1.5, "is_met": False}
    assert set(first["limit"]) == set(first["shares"]) == {"decode", "prefill"}
    assert second["verdicts"]["decode"]["required"] is None
    assert found["mixed_load"]["tokens_per_second"]["Quire"] == [700.0, 710.0]
    assert found["mixed_load"]["verdicts"]["vLLM"]["required"] == 2.0


def test_a_run_without_rates_has_a_json():
    assert Figures(ABOUT, cells=[CellFigures(CELL)]).to_json()["cells"][0]["tokens_per_second"] == {}
