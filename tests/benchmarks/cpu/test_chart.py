"""The chart of the benchmark `cpu`: a bar and a number for each side, up to the machine's limit."""

import json

from app.loadgen.plots import OURS, svg
from benchmarks.bars import Bar, Bars
from benchmarks.cpu.cells import Cell
from benchmarks.cpu.chart import chart
from benchmarks.cpu.figures import Figures
from benchmarks.figures import RESULTS
from tests.benchmarks.cpu.samples import ABOUT, sample_cell, sample_figures


def panels(figures: Figures) -> list[Bars]:
    """The panels, decode first, the mixed load last."""
    return [panel for row in chart(figures.to_json()).rows for column in row for panel in column]


def decode(cell) -> list[Bar]:
    """The bars of the decode rates of one cell."""
    return list(panels(Figures(ABOUT, cells=[cell]))[0].rows)


def test_the_chart_has_rates_ratios_and_peers():
    first, prefill, mixed = panels(sample_figures())
    assert [(bar.words, bar.note) for bar in first.rows] == [("830", "2.9×"), ("290", ""), ("271", "")]
    assert [bar.words for bar in prefill.rows] == ["8,300", "2,900", "8,300"] and prefill.rows[0].note == "1.0×"
    assert [(bar.label, bar.note) for bar in mixed.rows] == [
        ("vLLM", "3.2×"), ("Quire", ""), ("transformers, continuous", "11.4×"),
    ]  # fmt: skip
    assert [key.words for key in chart(sample_figures().to_json()).keys][:3] == ["Quire", "llama.cpp", "vLLM"]


def test_only_cells_with_a_required_ratio_are_drawn():
    assert not any("int8" in panel.title for panel in panels(sample_figures()))
    alone = panels(Figures(ABOUT, cells=[sample_cell(Cell("tiny", "int8", 1), Quire=9000.0)]))
    assert "tiny, 9 M weights, int8" in alone[0].title, "all cells are drawn if none has a required ratio"


def test_a_row_ends_at_the_limit_or_at_a_faster_value():
    (slow,), (fast,) = decode(sample_cell(Quire=500.0)), decode(sample_cell(Quire=5000.0))
    assert slow.colour == OURS and slow.value < slow.full_scale == slow.marks["limit"]
    assert fast.value == fast.full_scale > fast.marks["limit"]


def test_a_run_without_values_can_be_drawn():
    assert "Tokens per second" in svg(chart(Figures(ABOUT).to_json()))


def test_the_figures_of_the_last_run_can_be_drawn():
    assert "llama.cpp" in svg(chart(json.loads((RESULTS / "cpu.json").read_text())))
