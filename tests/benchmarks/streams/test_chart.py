"""The chart of the benchmark `streams`: a bar for each cell, with marks of the limit and of the bare protocol."""

from app.loadgen.plots import svg
from benchmarks.bars import Bar, Bars
from benchmarks.streams.chart import chart
from benchmarks.streams.figures import CellFigures
from tests.benchmarks.streams.samples import sample_figures


def panels(figures) -> list[Bars]:
    """The panels, from the top."""
    (((panels),),) = chart(figures.to_json()).rows
    return panels


def marks(bars: list[Bar], kind: str) -> int:
    """How many bars have a mark of a kind."""
    return sum(bar.marks.get(kind) is not None for bar in bars)


def test_costs_have_marks_of_the_limit_and_the_bare_protocol():
    paced, full, ages, memory = panels(sample_figures())
    assert marks([*paced.rows, *full.rows], "limit") == 4
    assert marks([*paced.rows, *full.rows], "floor") == 19, "every cost but those of the bare protocol itself"
    assert marks(memory.rows, "limit") == 1
    assert [bar.words for bar in full.rows if bar.label == "SSE, 64"] == ["11.5 (11.0-12.0)"]
    assert paced.rows[0].label == "SSE and WebSocket side by side, 2,000"
    assert (ages.rows[0].value, ages.rows[0].behind) == (5.0, 9.0)


def test_without_measurements_the_picture_is_empty():
    figures = sample_figures()
    figures.cells = [CellFigures(each.cell) for each in figures.cells]
    assert panels(figures) == []
    assert svg(chart(figures.to_json()))
