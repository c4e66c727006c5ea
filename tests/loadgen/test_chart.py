"""The chart of a load: a curve for each rate, and rates side by side if there are several."""

import math

from app.loadgen.chart import chart
from app.loadgen.figures import Figures
from app.loadgen.plots import Curves, svg
from tests.loadgen.fakes import make_answer, make_figures


def panels(*runs: Figures) -> list[Curves]:
    """The panels, column by column."""
    (columns,) = chart(runs, "A & B <guide>", "a machine").rows
    return [panel for column in columns for panel in column]


def curves(*runs: Figures) -> list[int]:
    """How many curves with points each panel has."""
    return [sum(bool(curve.points) for curve in panel.curves) for panel in panels(*runs)]


def test_one_rate_has_a_curve_for_each_kind_of_time():
    found = panels(make_figures(2.0))
    assert [panel.title for panel in found] == ["Time to first token, ms", "Between chunks, ms", "End to end, ms"]
    assert curves(make_figures(2.0)) == [1, 1, 1]
    picture = chart([make_figures(2.0)], "A & B <guide>", "a machine")
    assert [key.words for key in picture.keys] == ["2 requests/s"]
    assert "A &amp; B &lt;guide&gt;" in svg(picture)


def test_several_rates_have_curves_and_a_row_over_the_rate():
    runs = make_figures(2.0), make_figures(math.inf)
    assert curves(*runs) == [2, 2, 2, 2, 2, 1]
    assert panels(*runs)[1].xs == [(0.0, "2"), (1.0, "inf")]
    keys = [key.words for key in chart(runs, "", "").keys]
    assert keys == ["2 requests/s", "all at once", "p50", "p99"]


def test_a_percentile_is_drawn_only_with_enough_values():
    few, many = (panels(make_figures(2.0, *map(make_answer, range(count)))) for count in (20, 2000))
    assert "p99.9" not in [name for _, name in few[0].xs]
    assert all("p99.9" in [name for _, name in panel.xs] for panel in many)


def test_a_rate_without_completed_answers_leaves_a_gap():
    failed = make_figures(9.0, make_answer(status="failed", error="cut"))
    assert curves(make_figures(2.0), failed)[:3:2] == [1, 1]
    assert svg(chart([failed], "", "")).count("nothing was measured") == 3


def test_chunks_at_the_same_time_can_be_drawn():
    assert svg(chart([make_figures(2.0, make_answer(times=(0.1, 0.1, 0.1)))], "", ""))
