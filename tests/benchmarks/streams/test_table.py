"""The report tells every cell, what slow clients did, every promise, and failures."""

from benchmarks.streams.figures import CellFigures
from benchmarks.streams.table import progress_line, report
from tests.benchmarks.streams.made import made_figures


def test_every_measured_cell_has_a_row():
    figures = made_figures()
    text = "\n".join(report(figures))
    for found in figures.cells:
        assert f"\n{found.cell.name} " in text
    assert "20.0-21.0 us in 2 rounds" in text
    assert "no token was lost, doubled or wrong" in text
    assert "most tokens made beyond the last handed to the socket   200" in text


def test_cells_that_were_not_measured_have_none():
    figures = made_figures()
    figures.cells = [CellFigures(each.cell) for each in figures.cells]
    assert not any(line.startswith("sse") for line in report(figures))


def test_what_is_missed_or_has_failed_is_told():
    figures = made_figures(lost=2, kib_per_active_stream=75.0)
    figures.failures["ws 1"] = "the server died"
    text = "\n".join(report(figures))
    assert "lost is 2 tokens, at most 0: MISSED" in text
    assert "at most 60: MISSED by 15 KiB" in text
    assert "no token was lost" not in text
    assert "failed: ws 1: the server died" in text


def test_what_a_figure_does_not_have_is_a_dash():
    figures = made_figures()
    (row,) = [line for line in report(figures) if line.startswith("sse-saturated ")]
    assert row.split()[-7:-5] == ["-", "-"]


def test_progress_is_one_line():
    assert progress_line(made_figures().cells[0]) == (
        "both: 2,500 events/s, 21.0 us each, 5% of a core, ready but without it 0.2% of the time, clients 3%"
    )
