"""The picture of the benchmark `itl`: one client's tokens while long prompts arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from app.loadgen.plots import LIMIT, OURS, SHAPES, Curve, Curves, Key, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


@dataclass(frozen=True)
class Gaps(Curves):
    """Curves with a dashed line at `floor`, and rows of triangles: the x of each row, and its colour."""

    floor: float = 0.0
    triangles: Sequence[tuple[Sequence[float], str]] = ()

    def draw(self, axes: Axes, right: float) -> None:
        super().draw(axes, right)
        axes.axhline(self.floor, **SHAPES["floor"])
        heights = count(0.04, 0.07)  # as shares of the axis
        for (xs, colour), height in zip(self.triangles, heights, strict=False):
            style = {**SHAPES["triangles"], "color": colour}
            axes.plot(xs, [height] * len(xs), transform=axes.get_xaxis_transform(), **style)


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


def _panel(pair: Pair) -> Gaps:
    begin = -BEFORE * max(stream.token_times[-1] for stream in (pair.with_budget, pair.without))
    streams = ((pair.without, LIMIT), (pair.with_budget, OURS))
    return Gaps(
        pair.title,
        [Curve(list(_steps(stream, begin)), colour) for stream, colour in streams],
        x_title="seconds since the prompts arrived",
        floor=1e3 * pair.target_s,
        triangles=[(stream.first_tokens, colour) for stream, colour in streams],
    )


def _steps(stream: Stream, begin: float) -> Iterator[tuple[float, float]]:
    for before, at in pairwise(stream.token_times):
        if at > begin:
            yield from ((max(before, begin), 1e3 * (at - before)), (at, 1e3 * (at - before)))
