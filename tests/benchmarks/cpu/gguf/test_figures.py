"""What follows from the rates: ratios, verdicts, and the share of the machine's reading."""

import json

import pytest

from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.cells import LOADS, Cell
from tests.benchmarks.cpu.gguf.samples import sample_cell, sample_figures, sample_mixture

ONE, EIGHT, _, PROMPT = LOADS
CELL = Cell("q06", "Q4_0", "avx2")


def test_the_ratio_of_medians_is_held_against_the_limit_of_the_load():
    figures = sample_cell(CELL, 1.5)
    assert figures.ratio(ONE) == pytest.approx(1.5)
    assert figures.verdict(ONE).is_met and figures.verdict(EIGHT).is_missed
    assert str(figures.verdict(EIGHT)).startswith("q06 Q4_0 avx2: GGUF, 8 rows is 1.5 times, at least 2 times: MISSED")


def test_matrices_are_read_once_per_step():
    figures = sample_cell(CELL, 2.0)
    assert figures.read_share(ONE) == pytest.approx(20 * 400e6 / 20e9)
    assert figures.read_share(EIGHT) == pytest.approx(20 / 8 * 400e6 / 20e9)
    assert figures.read_share(PROMPT) is None


def test_a_cell_with_one_side_has_no_verdict():
    figures = sample_figures()
    del figures.cells[0].rates[OURS]
    assert not figures.cells[0].is_complete
    assert len(figures.verdicts()) == len(LOADS)
    assert figures.cells[0].to_json()["times"] == {}


def test_the_json_has_all_values():
    found = json.loads(json.dumps(sample_figures().to_json()))
    cell = found["cells"][1]
    assert (cell["shape"], cell["format"], cell["set"]) == ("smollm2", "int8", "avx2")
    assert cell["tokens_per_second"]["8 rows"]["Quire"] == pytest.approx([19.8, 22.0, 26.4])
    assert cell["times"]["8 rows"] == {"ratio": 2.2, "required": 2.0, "is_met": True}
    assert cell["contents"]["types"] == {"Q4_K": 0.7, "Q6_K": 0.3}
    assert cell["quality"] == {"ours": 0.005, "theirs": 0.004}


def test_each_round_is_compared_with_its_own_reading():
    figures = sample_cell(CELL, 2.0)
    figures.read_rates = [18e9, 10e9, 24e9]
    assert figures.read_share(ONE) == pytest.approx(400e6 * 18 / 18e9)


def test_of_experts_those_that_have_rows_are_read():
    figures = sample_mixture()
    assert [figures.step_bytes(load) for load in LOADS[:3]] == [340e6, 120e6 + 300e6 + 420e6, 1000e6]
    assert figures.read_share(ONE) == pytest.approx(10 * 340e6 / 20e9)


def test_dummies_are_judged_by_the_time_of_reading_and_by_loading_too():
    verdicts = {verdict.limit.name: verdict for verdict in sample_mixture().verdicts()}
    assert len(verdicts) == len(LOADS) + 5
    assert verdicts["GGUF, reading, 1 row"].figure == pytest.approx(20e9 / (10 * 340e6))
    assert (
        verdicts["GGUF, loading beyond llama.cpp"].figure == pytest.approx(1.5)
        and verdicts["GGUF, loading beyond llama.cpp"].is_missed
    )
    assert (
        verdicts["GGUF, memory beyond what stays"].figure == pytest.approx(0.3)
        and verdicts["GGUF, memory beyond what stays"].is_met
    )
    dense = sample_cell(Cell("olmo2", "BF16", "native"), 1.0)
    dense.loading_s = {side: [1.0] for side in dense.rates}
    assert [verdict.limit.name for verdict in dense.further_verdicts()] == [
        "GGUF, reading, 1 row", "GGUF, loading beyond llama.cpp", "GGUF, memory beyond what stays",
    ]  # fmt: skip


def test_the_json_of_a_mixture_has_what_was_counted():
    found = json.loads(json.dumps(sample_mixture().to_json()))
    assert found["distinct_experts"]["8 rows"] == [6, 7] and found["step_bytes"]["8 rows"] == 840_000_000
    assert found["loading_s"] == {"Quire": [5.0], "llama.cpp": [1.0, 2.0, 3.0]}
    assert any(
        line.startswith("mixtral Q8_0 native: GGUF, loading beyond llama.cpp is 1.5 s for each GB")
        for line in found["verdicts"]
    )
