"""Axes: marks in good places, and curves inside the panel."""

import re
from xml.etree import ElementTree

import pytest

from app.loadgen.panel import MAX_TICKS, Curve, Panel, Tick, even_ticks, log_range, log_ticks

PANEL = Panel(10, 20, 300, 200, "Time", [Tick(0, "0"), Tick(2, "p99")])


def drawn(panel: Panel, *curves: Curve) -> ElementTree.Element:
    return ElementTree.fromstring(f"<svg>{''.join(panel.draw(curves))}</svg>")


@pytest.mark.parametrize("ends", [(0.4, 3.0), (8.0, 900.0), (1.0, 1e5), (0.001, 0.01), (99.0, 210.0)])
def test_marks_of_a_logarithmic_axis_are_few_and_inside(ends):
    ticks = log_ticks(*ends)
    assert 1 <= len(ticks) <= MAX_TICKS
    assert all(ends[0] <= tick.value <= ends[1] for tick in ticks)


@pytest.mark.parametrize("high", [0.03, 1.0, 7.3, 9000.0])
def test_marks_of_an_even_axis_begin_at_nothing(high):
    ticks = even_ticks(high)
    assert ticks[0].value == 0 and ticks[-1].value <= high
    assert 3 <= len(ticks) <= MAX_TICKS + 1


@pytest.mark.parametrize("values", [[5.0], [1.0, 1.01], [1e-9, 100.0]])
def test_a_logarithmic_axis_is_neither_too_short_nor_too_long(values):
    low, high = log_range(values)
    assert low < max(values) < high
    assert 2 <= high / low <= 1.01e5


@pytest.mark.parametrize("is_log", [True, False])
def test_curves_stay_inside(is_log):
    curve = Curve([(0, 0.0), (1, 50.0), (2, 4000.0)], "main", "p50 & more", has_marks=True)
    root = drawn(PANEL._replace(is_log=is_log), curve)
    (line,) = root.findall("polyline")
    places = [tuple(map(float, place.split(","))) for place in line.get("points", "").split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True), "up is more"
    assert all(10 <= x <= 310 and 20 <= y <= 220 for x, y in places)
    assert len(root.findall("circle")) == 3
    assert [circle[0].text for circle in root.findall("circle")][1] == "p50 & more: 50"


def test_an_even_axis_begins_at_nothing_whatever_is_drawn():
    (line,) = drawn(PANEL._replace(is_log=False), Curve([(0, 90.0), (2, 100.0)], "main", "")).findall("polyline")
    heights = [220 - 24 - float(y) for y in re.findall(r",([\d.]+)", line.get("points", ""))]
    assert heights[0] / heights[1] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("curves", [(), (Curve([(0, 0.0)], "main", ""),)])
def test_nothing_to_draw_is_said(curves):
    assert "nothing was measured" in [each.text for each in drawn(PANEL, *curves).findall("text")]
