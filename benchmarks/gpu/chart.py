"""The roofline of the benchmark `gpu` as a picture (SVG, for light and dark pages). No torch.

Right is more operations for each byte that is moved, up is more operations per second. The roof is what this GPU was
measured to do: the slope is its bandwidth, the flat part its matrix units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.gpu.figures import Figure, Results
from benchmarks.gpu.limits import Ceilings
from benchmarks.picture import picture, text

WIDTH, HEIGHT = 880, 520
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 74, 56
INTENSITIES, RATES = (0.3, 20_000.0), (1e11, 2e15)  # both axes are logarithmic
KINDS = {"decode step": "step", "decode attention": "decode", "prefill attention": "prefill", "products": "matmul",
         "other kernels": "other"}  # fmt: skip

LIGHT = """
  .grid { stroke: #8c959f; stroke-opacity: 0.2 }
  .roof { fill: none; stroke: #bc4c00; stroke-width: 2 }
  circle { fill-opacity: 0.75 }
  .step { fill: #1f6feb }
  .decode { fill: #1a7f37 }
  .prefill { fill: #8250df }
  .matmul { fill: #bf8700 }
  .other { fill: #8c959f }
"""
DARK = """
    .roof { stroke: #f0883e }
    .step { fill: #4493f8 }
    .decode { fill: #3fb950 }
    .prefill { fill: #ab7df8 }
    .matmul { fill: #d29922 }
    .other { fill: #7d8590 }
"""


class Point(NamedTuple):
    """A figure in the picture: operations for each byte, operations per second, and what it is."""

    intensity: float
    rate: float
    kind: str
    name: str


def points(results: Results) -> Iterator[Point]:
    """Yield the figures that have both bytes and operations."""
    for section in results.sections.values():
        for figure in section.figures:
            num_bytes = sum(part.num_bytes for part in figure.work)
            rate = figure.operations_rate
            if section.name in ("S2", "S3") and num_bytes and rate:
                operations = rate * figure.seconds
                yield Point(operations / num_bytes, rate, _kind(section.name, figure), figure.name)


def chart(results: Results, title: str) -> str:
    """Return the SVG."""
    ceilings, found = results.ceilings, list(points(results))
    roof = [_at(x, min(x * ceilings.bandwidth, ceilings.operations)) for x in _roof_corners(ceilings)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in roof)
    measured = "measured in the same run" if "S0" in results.sections else "of an H200 as others measured it"
    says = f"roof: {ceilings.bandwidth / 1e12:.2f} TB/s, {ceilings.operations / 1e12:.0f} TFLOP/s, {measured}"
    return picture(
        title,
        WIDTH,
        HEIGHT,
        LIGHT,
        DARK,
        [
            text(LEFT, HEIGHT - BOTTOM + 38, says, "dim"),
            *_legend(found),
            *_grid(),
            f'<polyline class="roof" points="{path}"/>',
            *_circles(found),
        ],
    )


def _kind(section: str, figure: Figure) -> str:
    operation = figure.about.get("operation")
    known = {
        "decode_attention": "decode attention",
        "prefill_attention": "prefill attention",
        "matmul": "products",
        "matvec": "products",
    }
    return "decode step" if section == "S3" else known.get(str(operation), "other kernels")


def _roof_corners(ceilings: Ceilings) -> Sequence[float]:
    low, high = INTENSITIES
    return low, ceilings.operations / ceilings.bandwidth, high


def _at(intensity: float, rate: float) -> tuple[float, float]:
    """The place of a point; what is outside is drawn at the edge."""

    def share(value: float, ends: tuple[float, float]) -> float:
        low, high = map(math.log10, ends)
        return min(max((math.log10(value) - low) / (high - low), 0.0), 1.0)

    x = LEFT + share(intensity, INTENSITIES) * (WIDTH - LEFT - RIGHT)
    return x, HEIGHT - BOTTOM - share(rate, RATES) * (HEIGHT - TOP - BOTTOM)


def _circles(found: Sequence[Point]) -> Iterator[str]:
    for point in found:
        x, y = _at(point.intensity, point.rate)
        name = f"{point.name}: {point.rate / 1e12:.3g} TFLOP/s"
        circle = f'<circle class="{KINDS[point.kind]}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
        yield f"{circle}<title>{escape(name)}</title></circle>"


def _grid() -> Iterator[str]:
    for exponent in range(5):
        x, _ = _at(10.0**exponent, RATES[0])
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield text(x, HEIGHT - BOTTOM + 18, f"{10.0**exponent:g}", "dim", "middle")
    for exponent in range(11, 16):
        _, y = _at(INTENSITIES[0], 10.0**exponent)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(LEFT - 8, y + 4, f"{10.0 ** (exponent - 12):g}", "dim", "end")
    yield text(WIDTH - RIGHT, HEIGHT - BOTTOM + 38, "operations for each byte that must be moved", "dim", "end")
    yield text(20, TOP - 10, "TFLOP/s", "dim")


def _legend(found: Sequence[Point]) -> Iterator[str]:
    x = 100.0
    for name in dict.fromkeys(point.kind for point in found):
        kind = KINDS[name]
        yield f'<circle class="{kind}" cx="{x:g}" cy="50" r="4"/>'
        yield text(x + 9, 54, name)
        x += 30 + 7 * len(name)
