"""What is drawn of the benchmark `itl`: one client's tokens while long prompts arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from app.loadgen.plots import LIMIT, OURS, Curve, Curves, Key, Picture

BEFORE = 0.06  # the share of the longer run that is shown before the prompts arrive


class Stream(NamedTuple):
    """When one client's tokens came, and when the long prompts' first ones did; in seconds since these arrived."""

    token_times: Sequence[float]
    first_tokens: Sequence[float]


class Pair(NamedTuple):
    """Two runs over the same load, and the seconds that a step should take."""

    title: str
    target_s: float
    with_budget: Stream
    without: Stream


def chart(pairs: Sequence[Pair]) -> Picture:
    """Draw each gap between two tokens as long as it is high."""
    keys = [
        Key("with the step-time budget", shape="line"),
        Key("without", LIMIT, shape="line"),
        Key("its target", shape="floor"),
        Key("a long prompt's first token", shape="triangles"),
    ]
    title = "Time between a client's tokens while long prompts arrive, ms"
    return Picture(title, "", keys, [[[_panel(pair) for pair in pairs]]])


def _panel(pair: Pair) -> Curves:
    begin = -BEFORE * max(stream.token_times[-1] for stream in (pair.with_budget, pair.without))
    curves = []
    for stream, colour in ((pair.without, LIMIT), (pair.with_budget, OURS)):
        curves.append(Curve(list(_steps(stream, begin)), colour))
        curves.append(Curve([(at, 0.0) for at in stream.first_tokens], colour, "triangles"))
    return Curves(pair.title, curves, x_title="seconds since the prompts arrived", floor=1e3 * pair.target_s)


def _steps(stream: Stream, begin: float) -> Iterator[tuple[float, float]]:
    for before, at in pairwise(stream.token_times):
        if at > begin:
            yield from ((max(before, begin), 1e3 * (at - before)), (at, 1e3 * (at - before)))
