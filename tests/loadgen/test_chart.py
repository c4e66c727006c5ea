"""The picture: well-formed, a curve for each rate, and the rates side by side where there are several."""

import math
from xml.etree import ElementTree

from app.loadgen.chart import chart
from app.loadgen.figures import Figures
from tests.loadgen.made import made_answer, made_figures

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*every: Figures) -> ElementTree.Element:
    return ElementTree.fromstring(chart(every, "A & B <guide>", "a machine"))


def curves(root: ElementTree.Element) -> list[str]:
    return [line.get("class", "") for line in root.findall(f"{SVG}polyline")]


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.findall(f"{SVG}text")]


def test_one_rate_has_a_curve_for_each_kind_of_time():
    root = drawn(made_figures(2.0))
    assert curves(root) == ["c0"] * 3
    found = texts(root)
    assert {
        "A & B <guide>",
        "a machine",
        "2 requests/s",
        "Time to first token, ms",
        "Between chunks, ms",
        "End to end, ms",
    } <= set(found)
    assert "offered requests per second" not in found


def test_several_rates_have_curves_and_a_row_against_the_rate():
    root = drawn(made_figures(2.0), made_figures(math.inf))
    assert curves(root) == [*["c0", "c1"] * 3, *["main", "tail"] * 2, "main"]
    assert {"2 requests/s", "all at once", "p50", "p99", "inf", "Output tokens per second by rate"} <= set(texts(root))


def test_a_percentile_is_drawn_only_where_there_are_values_enough():
    few = drawn(made_figures(2.0, *(made_answer(number) for number in range(20))))
    many = drawn(made_figures(2.0, *(made_answer(number) for number in range(2000))))
    assert "p99.9" not in texts(few)
    assert texts(many).count("p99.9") == 3


def test_a_rate_at_which_nothing_was_completed_leaves_a_gap():
    failed = made_figures(9.0, made_answer(status="failed", error="cut"))
    assert curves(drawn(made_figures(2.0), failed)).count("c1") == 0
    assert texts(drawn(failed)).count("nothing was measured") == 3


def test_chunks_that_came_together_can_be_drawn():
    assert curves(drawn(made_figures(2.0, made_answer(times=(0.1, 0.1, 0.1))))) == ["c0", "c0"]
