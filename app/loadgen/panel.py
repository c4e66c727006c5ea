"""One small picture with axes, as lines of SVG: curves over a range, or marks over names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.picture import line, text

LEFT, TOP, BOTTOM = 46, 26, 24  # room for the numbers, the title, the names below
MAX_TICKS = 6


class Curve(NamedTuple):
    """Points of one line, how it is drawn (a CSS class), and what it is."""

    points: Sequence[tuple[float, float]]
    kind: str
    name: str
    has_marks: bool = False


class Tick(NamedTuple):
    """A place on an axis and what is written there."""

    value: float
    text: str


class Panel(NamedTuple):
    """A picture of its own: where it is, what it is called, and its axes.

    Attributes:
        xs: marks of the lower axis, which goes from the first to the last.
        is_log: the left axis is logarithmic; otherwise it begins at 0.
    """

    x: float
    y: float
    width: float
    height: float
    title: str
    xs: Sequence[Tick]
    is_log: bool = True

    def draw(self, curves: Sequence[Curve]) -> Iterator[str]:
        """Yield the SVG of title, axes and curves; without a point only the title and a word."""
        yield text(self.x, self.y + 12, self.title, "head")
        values = [value for curve in curves for _, value in curve.points if value > 0 or not self.is_log]
        if not values:
            yield text(self.x + LEFT, self.y + self.height / 2, "nothing was measured", "dim")
            return
        low, high = log_range(values) if self.is_log else (0.0, max(values) * 1.08 or 1.0)
        down = self._scale(low, high)
        for tick in log_ticks(low, high) if self.is_log else even_ticks(high):
            yield line("grid", self.x + LEFT, down(tick.value), self.x + self.width, down(tick.value))
            yield text(self.x + LEFT - 6, down(tick.value) + 4, tick.text, "dim", "end")
        for place in self.xs:
            yield text(self.across(place.value), self.y + self.height - 4, place.text, "dim", "middle")
        for curve in curves:
            yield from self._curve(curve, down, low)

    def across(self, value: float) -> float:
        """Return the x of a value of the lower axis."""
        first, last = self.xs[0].value, self.xs[-1].value
        edge = 0.5 if first == last else (value - first) / (last - first)
        return self.x + LEFT + 8 + edge * (self.width - LEFT - 16)

    def _scale(self, low: float, high: float) -> Callable[[float], float]:
        bottom, height = self.y + self.height - BOTTOM, self.height - TOP - BOTTOM

        def down(value: float) -> float:
            if self.is_log:
                return bottom - math.log(value / low) / math.log(high / low) * height
            return bottom - (value - low) / (high - low) * height

        return down

    def _curve(self, curve: Curve, down: Callable[[float], float], low: float) -> Iterator[str]:
        # What is 0 lies on the lower edge of a logarithmic axis: chunks that came together.
        places = [(self.across(x), down(max(value, low) if self.is_log else value)) for x, value in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="{curve.kind}" points="{path}"><title>{escape(curve.name)}</title></polyline>'
        if curve.has_marks:
            for (x, y), (_, value) in zip(places, curve.points, strict=True):
                label = escape(f"{curve.name}: {value:,.4g}")
                yield f'<circle class="{curve.kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{label}</title></circle>'


def log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis with some room around positive values; at most five decades."""
    high = max(values) * 1.15
    low = max(min(values) / 1.15, high / 1e5)
    return (low, high) if high / low > 2 else (low / 1.5, high * 1.5)


def log_ticks(low: float, high: float) -> list[Tick]:
    """Return marks at 1, 2 and 5 of each decade, or at the decades where these are too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [Tick(value, f"{value:,g}") for value in values if low <= value <= high]
        if len(ticks) <= MAX_TICKS:
            break
    return ticks


def even_ticks(high: float) -> list[Tick]:
    """Return marks from 0 up, at 1, 2 or 5 of a decade."""
    rough = high / (MAX_TICKS - 1)
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= rough)
    return [Tick(index * step, f"{index * step:,g}") for index in range(int(high / step) + 1)]
