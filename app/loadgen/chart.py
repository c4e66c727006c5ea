"""The figures of `quire bench serve` as a picture (SVG, for light and dark pages).

Above, how times are distributed: right is a higher percentile, with as much room for 90-99 % as for 99-99.9 %, since
the slow answers are what people notice. Below, where several rates were offered: times and throughput against the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from app.loadgen.figures import Figures, percentile, rate_text, run_title
from app.loadgen.panel import Curve, Panel, Tick
from benchmarks.picture import line, picture, text

WIDTH, MARGIN, GAP, HEIGHT = 960, 20, 30, 250
PANEL = (WIDTH - 2 * MARGIN - 2 * GAP) / 3
TOP = 92
NUM_COLOURS = 6
POINTS_PER_DECADE = 40
TITLES = {"ttft": "Time to first token, ms", "itl": "Between chunks, ms", "e2e": "End to end, ms"}
PERCENTILES = (("", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))

LIGHT = """
  .grid { stroke: #8c959f; stroke-opacity: 0.25 }
  polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
  line.key { stroke-width: 3; stroke-linecap: round }
  .c0 { stroke: #1a7f8e } .c1 { stroke: #1f6feb } .c2 { stroke: #8250df }
  .c3 { stroke: #bf3989 } .c4 { stroke: #bc4c00 } .c5 { stroke: #9a6700 }
  .main { stroke: #1f6feb } .tail { stroke: #bc4c00 }
  circle.main { fill: #1f6feb } circle.tail { fill: #bc4c00 }
"""
DARK = """
    .c0 { stroke: #39c5cf } .c1 { stroke: #4493f8 } .c2 { stroke: #ab7df8 }
    .c3 { stroke: #f778ba } .c4 { stroke: #f0883e } .c5 { stroke: #d29922 }
    .main { stroke: #4493f8 } .tail { stroke: #f0883e }
    circle.main { fill: #4493f8 } circle.tail { fill: #f0883e }
"""


def chart(every: Sequence[Figures], title: str, subtitle: str) -> str:
    """Return the SVG of one rate, or of several, which should rise."""
    is_sweep = len(every) > 1
    height = TOP + (2 * HEIGHT + GAP + 18 if is_sweep else HEIGHT) + MARGIN
    return picture(
        title,
        WIDTH,
        height,
        LIGHT,
        DARK,
        [
            text(MARGIN, MARGIN + 30, subtitle, "dim"),
            *_legend(every),
            *_distributions(every),
            *(_against_rate(every) if is_sweep else ()),
        ],
    )


def _legend(every: Sequence[Figures]) -> Iterator[str]:
    x = float(MARGIN)
    for index, found in enumerate(every):
        name = run_title(found)
        yield line(f"key c{index % NUM_COLOURS}", x, MARGIN + 48, x + 16, MARGIN + 48)
        yield text(x + 23, MARGIN + 52, name)
        x += 44 + 7 * len(name)


def _distributions(every: Sequence[Figures]) -> Iterator[str]:
    for column, (kind, title) in enumerate(TITLES.items()):
        longest = max(len(found.values[kind]) for found in every)
        last = min(max(math.log10(max(longest, 1)), 1.0), _stretched(PERCENTILES[-1][1]))
        known = [Tick(_stretched(share), name) for name, share in PERCENTILES]
        ticks = [*(tick for tick in known if tick.value <= last), Tick(last, "")]
        curves = [
            Curve(_percentile_curve(found.values[kind], last), f"c{index % NUM_COLOURS}", run_title(found))
            for index, found in enumerate(every)
        ]
        panel = Panel(MARGIN + column * (PANEL + GAP), TOP, PANEL, HEIGHT, title, ticks)
        yield from panel.draw([curve for curve in curves if curve.points])


def _percentile_curve(values: Sequence[float], last: float) -> list[tuple[float, float]]:
    """Return points of stretched percentile and value, up to the percentile that as many values can tell."""
    if not values:
        return []
    end = min(last, math.log10(max(len(values), 2)))
    count = max(2, round(end * POINTS_PER_DECADE))
    places = [end * index / (count - 1) for index in range(count)]
    return [(place, percentile(values, 1 - 10**-place)) for place in places]


def _stretched(share: float) -> float:
    """Return the decades that are left above a percentile: 0.9 is 1, 0.99 is 2."""
    return -math.log10(1 - share)


def _against_rate(every: Sequence[Figures]) -> Iterator[str]:
    y = TOP + HEIGHT + GAP
    rates = [Tick(index, rate_text(found.rate)) for index, found in enumerate(every)]
    for column, kind in enumerate(("ttft", "itl")):
        title = f"{TITLES[kind].removesuffix(', ms')} by rate, ms"
        panel = Panel(MARGIN + column * (PANEL + GAP), y, PANEL, HEIGHT, title, rates)
        curves = [_rate_curve(every, kind, "p50", "main"), _rate_curve(every, kind, "p99", "tail")]
        yield from panel.draw([curve for curve in curves if curve.points])
    panel = Panel(MARGIN + 2 * (PANEL + GAP), y, PANEL, HEIGHT, "Output tokens per second by rate", rates, is_log=False)
    points = [(float(index), found.output_per_s) for index, found in enumerate(every)]
    yield from panel.draw([Curve(points, "main", "output tokens per second", has_marks=True)])
    for x, kind, name in ((MARGIN, "main", "p50"), (MARGIN + 60, "tail", "p99")):
        yield line(f"key {kind}", x, y + HEIGHT + 10, x + 16, y + HEIGHT + 10)
        yield text(x + 23, y + HEIGHT + 14, name)
    yield text(WIDTH - MARGIN, y + HEIGHT + 14, "offered requests per second", "dim", "end")


def _rate_curve(every: Sequence[Figures], kind: str, name: str, style: str) -> Curve:
    spreads = [(index, found.spread(kind)) for index, found in enumerate(every)]
    points = [(float(index), getattr(spread, name)) for index, spread in spreads if spread is not None]
    return Curve(points, style, name, has_marks=True)
