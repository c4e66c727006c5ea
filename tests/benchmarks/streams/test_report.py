"""The report has every cell, the figures of slow clients, and the verdicts."""

from app.observe.terminal import Terminal
from benchmarks.streams.figures import CellFigures
from benchmarks.streams.report import progress_line, report
from tests.benchmarks.streams.samples import sample_figures


def test_every_measured_cell_has_a_row():
    figures = sample_figures()
    text = "\n".join(report(figures, Terminal()))
    for found in figures.cells:
        assert f"\n{found.cell.name} " in text
    assert "20-21 us" in text
    assert "no token was lost, doubled or wrong" in text
    assert "most tokens generated beyond the last one written to the socket" in text


def test_cells_without_runs_have_no_row():
    figures = sample_figures()
    figures.cells = [CellFigures(each.cell) for each in figures.cells]
    assert not any(line.startswith("sse") for line in report(figures, Terminal()))


def test_missed_limits_are_in_the_report():
    figures = sample_figures(lost=2, kib_per_active_stream=75.0)
    text = "\n".join(report(figures, Terminal()))
    assert "lost is 2 tokens, at most 0 tokens: MISSED" in text
    assert "at most 60 KiB: MISSED by 15 KiB" in text
    assert "no token was lost" not in text


def test_a_missing_figure_is_a_dash():
    figures = sample_figures()
    row = next(line for line in report(figures, Terminal()) if line.startswith("sse-saturated "))
    assert row.split()[-4:-2] == ["-", "-"]


def test_progress_is_one_line():
    assert progress_line(sample_figures().cells[0]) == (
        "both: 2,500 events/s, 21.0 us each, 5% of a core, ready but without it 0.2% of the time, clients 3%"
    )
