"""The picture: a roof, and a point for each step and kernel; whatever was measured."""

from xml.etree import ElementTree

from benchmarks.gpu.chart import chart, points
from benchmarks.gpu.figures import Figure, Results, SectionResult
from benchmarks.gpu.limits import Work
from tests.benchmarks.gpu.made import made_results

SVG = "{http://www.w3.org/2000/svg}"


def drawn(results: Results) -> ElementTree.Element:
    """The picture as it is read."""
    return ElementTree.fromstring(chart(results, "a <title>"))


def test_there_is_a_point_for_each_step_and_kernel_with_operations():
    found = list(points(made_results()))
    assert [point.kind for point in found] == ["decode step", *["decode attention"] * 3, "prefill attention"]
    prefill = found[-1]
    assert (prefill.intensity, prefill.rate) == (5500, 4e14)
    root = drawn(made_results())
    titles = [circle.findtext(f"{SVG}title") for circle in root.iter(f"{SVG}circle")]
    assert sum(title is not None for title in titles) == 5
    assert "prefill_attention 1 x 8192: 400 TFLOP/s" in titles


def test_the_roof_is_the_runs_own_or_says_that_it_is_not():
    text = chart(made_results(), "x")
    assert "roof: 4.30 TB/s, 790 TFLOP/s, measured in the same run" in text
    assert "as others measured it" in chart(Results(), "x")
    assert list(drawn(Results()).iter(f"{SVG}circle")) == []


def test_points_outside_are_drawn_at_the_edge():
    figure = Figure("slow", "us", (1e9,), (Work(1e12, 1.0),), about={"operation": "norm"})
    root = drawn(Results({}, {"S2": SectionResult("S2", [figure])}))
    (circle,) = [each for each in root.iter(f"{SVG}circle") if each.find(f"{SVG}title") is not None]
    assert (float(circle.get("cx")), float(circle.get("cy"))) == (64, 464)
