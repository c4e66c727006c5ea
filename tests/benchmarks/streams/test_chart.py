"""The picture has a bar for each cell, with what is promised and the bare protocol marked; whatever was measured."""

from xml.etree import ElementTree

from benchmarks.streams.chart import chart
from benchmarks.streams.figures import CellFigures
from tests.benchmarks.streams.made import made_figures

SVG = "{http://www.w3.org/2000/svg}"


def drawn(figures) -> ElementTree.Element:
    """The picture as it is read."""
    return ElementTree.fromstring(chart(figures, "a <title>"))


def marks(root: ElementTree.Element, kind: str) -> int:
    """How many marks of a kind there are, the legend's not counted."""
    return sum(line.get("class") == kind for line in root.iter(f"{SVG}line")) - 1


def test_costs_have_their_limits_and_the_floor():
    root = drawn(made_figures())
    assert marks(root, "limit") == 5  # four costs and the memory of a stream
    assert marks(root, "floor") == 11  # every cost but those of the bare protocol itself
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "11.5  (11.0-12.0)" in texts
    assert "SSE and WebSocket side by side, 2,000" in texts
    assert texts[0] == "a <title>"


def test_bars_stay_within_the_picture():
    root = drawn(made_figures())
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x")) + float(rect.get("width")) <= 880
    height = float(root.get("height"))
    assert all(float(text.get("y")) < height for text in root.iter(f"{SVG}text"))


def test_nothing_measured_is_an_empty_picture():
    figures = made_figures()
    figures.cells = [CellFigures(each.cell) for each in figures.cells]
    assert list(drawn(figures).iter(f"{SVG}rect")) == []
