"""Times between tokens as a picture, for light and dark pages: each gap is as long as it is high (on a log scale)."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, MARGIN = 760, 16
LEFT, RIGHT = 72, 24  # of a panel's axes
HEAD, AXES, FOOT = 34, 190, 58
TOP = 44
BEFORE = 0.06  # the share of the longer run that is shown before the prompts arrive

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
  .head { font-weight: 600; font-size: 13px }
  .grid { stroke: #8c959f; stroke-opacity: 0.3 }
  .with, .without { fill: none; stroke-width: 2 }
  .with { stroke: #1f6feb }
  .without { stroke: #bc4c00 }
  .target { stroke: #8c959f; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .with { stroke: #4493f8 }
    .without { stroke: #f0883e }
  }
"""


class Curve(NamedTuple):
    """When one client's tokens came, and when the long prompts' first ones did; in seconds since these arrived."""

    token_times: Sequence[float]
    first_tokens: Sequence[float]


class Panel(NamedTuple):
    """Two runs over the same load, and the seconds that a step should take."""

    title: str
    target_s: float
    with_budget: Curve
    without: Curve


class _Axes:
    """From seconds to places; the y axis is logarithmic and covers whole powers of ten."""

    def __init__(self, panel: Panel, y: float) -> None:
        curves = (panel.with_budget, panel.without)
        self.end = max(curve.token_times[-1] for curve in curves)
        self.begin = -BEFORE * self.end
        gaps = [gap for curve in curves for at, gap in _gaps(curve) if at > self.begin]
        self.low, self.high = floor(log10(min(gaps))), ceil(log10(max(gaps)))
        self.top, self.bottom = y, y + AXES

    def x(self, seconds: float) -> float:
        """Return the place of a time."""
        share = (max(seconds, self.begin) - self.begin) / (self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, seconds: float) -> float:
        """Return the place of a gap."""
        return self.bottom - (log10(seconds) - self.low) / (self.high - self.low) * AXES


def plot(panels: Sequence[Panel]) -> str:
    """Return the SVG."""
    height = TOP + len(panels) * (HEAD + AXES + FOOT)
    title = "Time between a client's tokens while long prompts arrive, with the step-time budget and without"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        *_legend(),
    ]
    for index, panel in enumerate(panels):
        lines += _draw(panel, TOP + index * (HEAD + AXES + FOOT))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> list[str]:
    y, lines = MARGIN + 12, []
    entries = (("with", "with the step-time budget", 0), ("without", "without", 212), ("target", "its target", 306))
    for kind, text, x in entries:
        lines.append(f'<line class="{kind}" x1="{MARGIN + x}" x2="{MARGIN + x + 24}" y1="{y - 4}" y2="{y - 4}"/>')
        lines.append(_text(MARGIN + x + 30, y, text))
    lines.append(_text(WIDTH - RIGHT, y, "▲ a long prompt's first token", anchor="end"))
    return lines


def _draw(panel: Panel, y: float) -> list[str]:
    axes = _Axes(panel, y + HEAD)
    lines = [_text(MARGIN, y + 20, panel.title, kind="head"), *_grid(axes)]
    at = axes.y(panel.target_s)
    lines.append(f'<line class="target" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
    for kind, curve, row in (("without", panel.without, 2), ("with", panel.with_budget, 1)):
        lines.append(f'<path class="{kind}" d="{_path(curve, axes)}"/>')
        lines += [_mark(kind, axes.x(at), axes.bottom + 12 * row) for at in curve.first_tokens]
    return lines


def _grid(axes: _Axes) -> list[str]:
    lines = []
    for power in range(axes.low, axes.high + 1):
        at, gap_s = axes.y(10.0**power), 10.0**power
        label = f"{gap_s:g} s" if power >= 0 else f"{1000 * gap_s:g} ms"
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        lines.append(_text(LEFT - 8, at + 4, label, anchor="end"))
    step = _round_step(axes.end / 6)
    ticks = [number * step for number in range(int(axes.end / step) + 1)]
    return lines + [_text(axes.x(at), axes.bottom + 44, f"{at:g} s", anchor="middle") for at in ticks]


def _round_step(seconds: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `seconds`."""
    power = 10.0 ** floor(log10(seconds))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= seconds)


def _path(curve: Curve, axes: _Axes) -> str:
    parts: list[str] = []
    for at, gap in _gaps(curve):
        if at > axes.begin:
            y = axes.y(gap)
            parts.append(f"{'L' if parts else 'M'}{axes.x(at - gap):.1f} {y:.1f}H{axes.x(at):.1f}")
    return "".join(parts)


def _gaps(curve: Curve) -> list[tuple[float, float]]:
    """Return each gap's end and length."""
    return [(end, end - begin) for begin, end in pairwise(curve.token_times)]


def _mark(kind: str, x: float, y: float) -> str:
    return f'<path class="{kind}" d="M{x - 4:.1f} {y + 3:.1f}L{x:.1f} {y - 4:.1f}L{x + 4:.1f} {y + 3:.1f}Z"/>'


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}"{place}>{escape(text)}</text>'
