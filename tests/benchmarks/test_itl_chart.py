"""The chart of the benchmark `itl`: gaps between tokens over time, and the first tokens of long prompts."""

from app.loadgen.plots import LIMIT, OURS, svg
from benchmarks.itl_chart import Pair, Stream, chart

PAIR = Pair("guide", 0.05, Stream([-1.0, -0.01, 0.0, 0.5, 1.0], [0.4]), Stream([-0.01, 0.0, 0.25, 1.0], [0.2, 0.3]))


def test_a_gap_is_as_long_as_high_and_earlier_gaps_are_clipped():
    (((panel,),),) = chart([PAIR]).rows
    lines = {curve.colour: curve.points for curve in panel.curves}
    shown = [(-0.01, 10.0), (0.0, 10.0), (0.0, 500.0), (0.5, 500.0), (0.5, 500.0), (1.0, 500.0)]
    assert lines[OURS] == [(-0.06, 990.0), (-0.01, 990.0), *shown]
    assert lines[LIMIT][-2:] == [(0.25, 750.0), (1.0, 750.0)]
    assert panel.triangles == [([0.2, 0.3], LIMIT), ([0.4], OURS)]
    assert panel.floor == 50.0


def test_the_chart_can_be_drawn():
    assert "guide" in svg(chart([PAIR]))
