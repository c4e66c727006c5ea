"""What is drawn of `quire bench serve`: how times are distributed, and where several rates were offered, against these.

Right is a higher percentile, with as much room for 90-99 % as for 99-99.9 %, since the slow answers are what people
notice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from app.loadgen.figures import Figures, percentile, rate_text, run_title
from app.loadgen.plots import LIMIT, OURS, SERIES, Curve, Curves, Key, Picture

POINTS_PER_DECADE = 40
TITLES = {"ttft": "Time to first token, ms", "itl": "Between chunks, ms", "e2e": "End to end, ms"}
PERCENTILES = (("", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))


def chart(every: Sequence[Figures], title: str, subtitle: str) -> Picture:
    """Draw one rate, or several, which should rise."""
    columns = [[_distribution(kind, every)] for kind in TITLES]
    keys = [Key(run_title(found), _colour(index), "line") for index, found in enumerate(every)]
    if len(every) > 1:
        for column, panel in zip(columns, _by_rate(every), strict=True):
            column.append(panel)
        keys += [Key("p50", OURS, "dotted"), Key("p99", LIMIT, "dotted")]
    return Picture(title, subtitle, keys, [columns])


def _distribution(kind: str, every: Sequence[Figures]) -> Curves:
    longest = max(len(found.values[kind]) for found in every)
    last = min(max(math.log10(max(longest, 1)), 1.0), _stretched(PERCENTILES[-1][1]))
    marks = [(at, name) for name, share in PERCENTILES if (at := _stretched(share)) <= last]
    curves = [
        Curve(_percentile_curve(found.values[kind], last), _colour(index), name=run_title(found))
        for index, found in enumerate(every)
    ]
    return Curves(TITLES[kind], curves, [*marks, (last, "")])


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


def _by_rate(every: Sequence[Figures]) -> Iterator[Curves]:
    rates = [(float(index), rate_text(found.rate)) for index, found in enumerate(every)]
    for kind in ("ttft", "itl"):
        spreads = [(float(index), found.spread(kind)) for index, found in enumerate(every)]
        curves = [
            Curve([(at, getattr(spread, name)) for at, spread in spreads if spread], colour, "dotted", name)
            for name, colour in (("p50", OURS), ("p99", LIMIT))
        ]
        yield Curves(f"{TITLES[kind].removesuffix(', ms')} by rate, ms", curves, rates, "requests/s")
    rate = Curve([(float(index), found.output_per_s) for index, found in enumerate(every)], OURS, "dotted")
    yield Curves("Output tokens per second by rate", [rate], rates, "requests/s", is_log=False)


def _colour(index: int) -> str:
    return SERIES[index % len(SERIES)]
