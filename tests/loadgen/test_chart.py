"""What is drawn of a load: a curve for each rate, and the rates side by side where there are several."""

import math

from app.loadgen.chart import chart
from app.loadgen.figures import Figures
from app.loadgen.plots import Curves, svg
from tests.loadgen.made import made_answer, made_figures


def panels(*every: Figures) -> list[Curves]:
    """The panels, column by column."""
    (columns,) = chart(every, "A & B <guide>", "a machine").rows
    return [panel for column in columns for panel in column]


def curves(*every: Figures) -> list[int]:
    """How many curves with points each panel has."""
    return [sum(bool(curve.points) for curve in panel.curves) for panel in panels(*every)]


def test_one_rate_has_a_curve_for_each_kind_of_time():
    found = panels(made_figures(2.0))
    assert [panel.title for panel in found] == ["Time to first token, ms", "Between chunks, ms", "End to end, ms"]
    assert curves(made_figures(2.0)) == [1, 1, 1]
    picture = chart([made_figures(2.0)], "A & B <guide>", "a machine")
    assert [key.words for key in picture.keys] == ["2 requests/s"]
    assert "A &amp; B &lt;guide&gt;" in svg(picture)


def test_several_rates_have_curves_and_a_row_against_the_rate():
    every = made_figures(2.0), made_figures(math.inf)
    assert curves(*every) == [2, 2, 2, 2, 2, 1]
    assert panels(*every)[1].xs == [(0.0, "2"), (1.0, "inf")]
    keys = [key.words for key in chart(every, "", "").keys]
    assert keys == ["2 requests/s", "all at once", "p50", "p99"]


def test_a_percentile_is_drawn_only_where_there_are_values_enough():
    few, many = (panels(made_figures(2.0, *map(made_answer, range(count)))) for count in (20, 2000))
    assert "p99.9" not in [name for _, name in few[0].xs]
    assert all("p99.9" in [name for _, name in panel.xs] for panel in many)


def test_a_rate_at_which_nothing_was_completed_leaves_a_gap():
    failed = made_figures(9.0, made_answer(status="failed", error="cut"))
    assert curves(made_figures(2.0), failed)[:3:2] == [1, 1]
    assert svg(chart([failed], "", "")).count("nothing was measured") == 3


def test_chunks_that_came_together_can_be_drawn():
    assert svg(chart([made_figures(2.0, made_answer(times=(0.1, 0.1, 0.1)))], "", ""))
