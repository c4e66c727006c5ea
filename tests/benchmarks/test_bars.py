"""Bars: shares of their row, with labels, values and notes beside them."""

from xml.etree import ElementTree

from matplotlib.figure import Figure

from app.loadgen.plots import LIMIT, OURS, Picture, svg
from benchmarks.bars import PEERS, Bar, Bars

BARS = Bars(
    "Rates & more",
    [
        Bar("one", 5.0, "5 of 10", full_scale=10.0, marks={"limit": 10.0, "floor": None}, note="2×"),
        Bar("", 2.0, "2 of 10", PEERS[0], full_scale=10.0, behind=4.0, marks={"limit": 10.0}),
        Bar("two", 3.0, "3", marks={"floor": 1.0}),
    ],
)


def test_labels_values_and_notes_are_text():
    root = ElementTree.fromstring(svg(Picture("bars", "", [], [[[BARS]]])))
    words = {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Rates & more", "one", "two", "5 of 10", "2 of 10", "3", "2×"} <= words


def test_bars_are_shares_of_their_row():
    axes = Figure().add_subplot()
    BARS.draw(axes, 0)
    widths = [round(bar.get_width(), 3) for bar in axes.patches]
    assert widths == [1, 0.5, 1, 0.4, 0.2, 1, 0.3], "the last row has the length of its farthest mark"


def test_colours_of_limit_quire_and_peers_differ():
    assert OURS not in PEERS and LIMIT not in PEERS
