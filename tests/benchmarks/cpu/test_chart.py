"""The picture: well-formed, with each side's bar and number, and no bar beyond its track."""

from xml.etree import ElementTree

from benchmarks.cpu.cells import Cell
from benchmarks.cpu.chart import TRACK, chart
from benchmarks.cpu.figures import Figures
from tests.benchmarks.cpu.made import made_cell, made_figures


def drawn(figures: Figures) -> ElementTree.Element:
    """The picture as a tree."""
    return ElementTree.fromstring(chart(figures, "Tokens per second on 2 cores: A & B <CPU>"))


def texts(root: ElementTree.Element) -> list[str]:
    """All texts in the picture."""
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


def rectangles(root: ElementTree.Element, kind: str) -> list[float]:
    """The widths of the bars of a kind, without the legend's."""
    found = [element for element in root.iter() if element.get("class") == kind]
    return [float(element.get("width", "")) for element in found if element.get("width") != "20.0"]


def test_rates_ratios_and_peers_are_told():
    found = texts(drawn(made_figures()))
    for text in ("830", "290", "271", "8,300", "2.9×", "1.0×", "llama.cpp", "vLLM", "transformers, continuous", "3.2×"):
        assert text in found
    assert "Tokens per second on 2 cores: A & B <CPU>" in found


def test_only_cells_in_which_something_is_required_are_drawn():
    assert "tiny, 9 M weights, int8" not in texts(drawn(made_figures()))
    alone = Figures({}, cells=[made_cell(Cell("tiny", "int8", 1), Quire=9000.0)])
    assert "tiny, 9 M weights, int8" in texts(drawn(alone)), "unless there are no others"


def test_bars_end_at_the_limit_or_at_the_fastest_beyond_it():
    slow, fast = (drawn(Figures({}, cells=[made_cell(Quire=rate)])) for rate in (500.0, 5000.0))
    assert 0 < rectangles(slow, "ours")[0] < TRACK
    assert rectangles(fast, "ours")[0] == round(TRACK, 1)
    limits = [float(line.get("x1", "")) for line in fast.iter() if line.get("class") == "limit"]
    assert all(x < 20 + 62 + TRACK for x in limits[1:2]), "the limit is inside the track then"


def test_a_run_without_a_value_can_be_drawn():
    assert drawn(Figures({})) is not None
