"""The picture of the benchmark `gpu`: the roofline. No torch.

Right is more operations for each byte that is moved, up is more operations per second. The roof is what this GPU was
measured to do: the slope is its bandwidth, the flat part its matrix units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from app.loadgen.plots import LIMIT, SERIES, Curve, Curves, Key, Picture
from benchmarks.gpu.figures import Figure, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTENSITIES = (0.3, 20_000.0)  # where the roof begins and ends
KINDS = ("decode step", "decode attention", "prefill attention", "products", "other kernels")
COLOURS = dict(zip(KINDS, (SERIES[1], SERIES[0], SERIES[2], SERIES[5], SERIES[3]), strict=True))
OPERATIONS = {
    "decode_attention": "decode attention",
    "prefill_attention": "prefill attention",
    "matmul": "products",
    "matvec": "products",
}


class Point(NamedTuple):
    """A figure in the picture: operations for each byte, operations per second, and what it is."""

    intensity: float
    rate: float
    kind: str
    name: str


@dataclass(frozen=True)
class Roofline(Curves):
    """Curves over two logarithmic axes."""

    height: float = 380

    def draw(self, axes: Axes, right: float) -> None:
        super().draw(axes, right)
        axes.set_xscale("log")
        axes.grid(axis="x")
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()


def chart(results: Results) -> Picture:
    """Draw the roof, and a dot for each step and kernel."""
    ceilings, found = results.ceilings, list(points(results))
    ridge = ceilings.operations / ceilings.bandwidth
    roof = [(at, min(at * ceilings.bandwidth, ceilings.operations) / 1e12) for at in sorted((*INTENSITIES, ridge))]
    measured = "measured in the same run" if "S0" in results.sections else "of an H200 as others measured it"
    dots = [
        Curve(
            [(each.intensity, each.rate / 1e12)],
            COLOURS[each.kind],
            "dots",
            f"{each.name}: {each.rate / 1e12:.3g} TFLOP/s",
        )
        for each in found
    ]
    return Picture(
        f"What a step computes for each byte it moves: {results.about.get('gpu') or 'GPU'}",
        f"roof: {ceilings.bandwidth / 1e12:.2f} TB/s, {ceilings.operations / 1e12:.0f} TFLOP/s, {measured}",
        [Key(kind, COLOURS[kind], "dots") for kind in KINDS if any(each.kind == kind for each in found)],
        [[[Roofline("TFLOP/s", [Curve(roof, LIMIT), *dots], x_title="operations for each byte moved")]]],
    )


def points(results: Results) -> Iterator[Point]:
    """Yield the figures that have both bytes and operations."""
    for section in results.sections.values():
        for figure in section.figures:
            num_bytes = sum(part.num_bytes for part in figure.work)
            rate = figure.operations_rate
            if section.name in ("S2", "S3") and num_bytes and rate:
                operations = rate * figure.seconds
                yield Point(operations / num_bytes, rate, _kind(section.name, figure), figure.name)


def _kind(section: str, figure: Figure) -> str:
    return "decode step" if section == "S3" else OPERATIONS.get(str(figure.about.get("operation")), "other kernels")
