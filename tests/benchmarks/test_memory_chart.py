"""The chart of the benchmark `memory`: every figure, with marks of the paper's figures."""

import json

from app.loadgen.plots import OURS, svg
from benchmarks.figures import RESULTS
from benchmarks.memory import Figure
from benchmarks.memory_chart import chart

FIGURES = [
    Figure("waste of the whole memory", "ShareGPT-like", "whole context", 0.8, paper=0.796),
    Figure("waste of the whole memory", "ShareGPT-like", "blocks", 0.03, paper=0.037),
    Figure("parallel sampling", "Alpaca-like", "n = 2", 0.07, paper=0.061),
    Figure("beam search", "ShareGPT-like", "width 4 & more", 0.7),
    Figure("requests at once", "ShareGPT-like", "blocks", 30.0),
]


def test_each_section_is_a_panel_of_shares():
    ((first, second),) = chart(figure.to_json() for figure in FIGURES).rows
    assert [[bar.label for bar in panel.rows] for panel in [*first, *second]] == [
        ["whole context", "blocks"], ["Alpaca, n = 2"], ["ShareGPT, width 4 & more"],
    ]  # fmt: skip
    theirs, ours = first[0].rows
    assert (theirs.colour, theirs.marks) != (OURS, {}) and (ours.colour, ours.marks["limit"]) == (OURS, 0.037)
    assert {bar.full_scale for panel in first for bar in panel.rows} == {1.0}


def test_the_figures_of_the_last_run_can_be_drawn():
    assert "52.5%" in svg(chart(json.loads((RESULTS / "memory.json").read_text())["figures"]))
