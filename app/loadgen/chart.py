"""The picture of `quire bench serve`: the distributions of times and, with several rates, times over rates.

The x axis of a distribution is the percentile, with the same width for 90-99 % as for 99-99.9 %, because users notice
the slow answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from app.loadgen.figures import Figures, percentile, rate_text, run_title
from app.loadgen.plots import LIMIT, OURS, SERIES, Curve, Curves, Key, Picture

POINTS_PER_DECADE = 40
TITLES = {"ttft": "Time to first token, ms", "itl": "Between chunks, ms", "e2e": "End to end, ms"}
PERCENTILES = (("", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))


def chart(runs: Sequence[Figures], title: str, subtitle: str) -> Picture:
    """Return the picture of one run, or of several at rising rates."""
    columns = [[_distribution(kind, runs)] for kind in TITLES]
    keys = [Key(run_title(found), _colour(index), "line") for index, found in enumerate(runs)]
    if len(runs) > 1:
        for column, panel in zip(columns, _by_rate(runs), strict=True):
            column.append(panel)
        keys += [Key("p50", OURS, "dotted"), Key("p99", LIMIT, "dotted")]
    return Picture(title, subtitle, keys, [columns])


def _distribution(kind: str, runs: Sequence[Figures]) -> Curves:
    longest = max(len(found.values[kind]) for found in runs)
    last = min(max(math.log10(max(longest, 1)), 1.0), _decades(PERCENTILES[-1][1]))
    marks = [(at, name) for name, share in PERCENTILES if (at := _decades(share)) <= last]
    curves = [
        Curve(_percentile_curve(found.values[kind], last), _colour(index), name=run_title(found))
        for index, found in enumerate(runs)
    ]
    return Curves(TITLES[kind], curves, [*marks, (last, "")])


def _percentile_curve(values: Sequence[float], last: float) -> list[tuple[float, float]]:
    """Return points (decades, value) up to the highest percentile that this number of values can show."""
    if not values:
        return []
    end = min(last, math.log10(max(len(values), 2)))
    count = max(2, round(end * POINTS_PER_DECADE))
    xs = [end * index / (count - 1) for index in range(count)]
    return [(x, percentile(values, 1 - 10**-x)) for x in xs]


def _decades(share: float) -> float:
    """Return the x of a percentile, the decades of the share above it: 0.9 is 1, 0.99 is 2."""
    return -math.log10(1 - share)


def _by_rate(runs: Sequence[Figures]) -> Iterator[Curves]:
    rates = [(float(index), rate_text(found.rate)) for index, found in enumerate(runs)]
    for kind in ("ttft", "itl"):
        spreads = [(float(index), found.spread(kind)) for index, found in enumerate(runs)]
        curves = [
            Curve([(at, getattr(spread, name)) for at, spread in spreads if spread], colour, "dotted", name)
            for name, colour in (("p50", OURS), ("p99", LIMIT))
        ]
        yield Curves(f"{TITLES[kind].removesuffix(', ms')} by rate, ms", curves, rates, "requests/s")
    rate = Curve([(float(index), found.output_per_s) for index, found in enumerate(runs)], OURS, "dotted")
    yield Curves("Output tokens per second by rate", [rate], rates, "requests/s", is_log=False)


def _colour(index: int) -> str:
    return SERIES[index % len(SERIES)]
