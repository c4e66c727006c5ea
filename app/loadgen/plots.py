"""Pictures of benchmarks, drawn by matplotlib as SVG for light and dark pages.

A picture is described as data: rows of columns of panels, and a legend. It has no background, and its colours can be
read on white and on black. Words are text. The same picture is drawn as the same bytes every time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, LIMIT, TEXT, LINES = "#2f81f7", "#db6d28", "#79828c", "#8c959f"
SERIES = ("#1a93a8", OURS, "#8e6ae0", "#d05ba0", "#cf6a2b", "#a87f1a")
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "line": {"linestyle": "-"},
    "dots": {"linestyle": "", "marker": "o"},
    "dotted": {"linestyle": "-", "marker": "o"},
    "triangles": {"linestyle": "", "marker": "^"},
    "limit": {"color": LIMIT, "linewidth": 2.0},
    "floor": {"color": TEXT, "linewidth": 1.0, "linestyle": (0, (2, 2))},
}
"""How points are drawn; `limit` and `floor` are marks across bars or lines across curves."""

# Sizes are pixels, except those in matplotlib's own settings, which are points.
WIDTH, MARGIN, GAP, BELOW, NUMBERS = 880, 20, 34, 14, 48
TITLE, SUBTITLE, KEYS, HEAD = 34, 20, 24, 28
STYLE = {
    "font.size": 9.0,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.7,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.0,
    "lines.solid_joinstyle": "round",
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "quire",
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), LINES),
}
_NAME = "name: "  # the prefix of the SVG id of a curve with a name
_NAMED = re.compile(f'<g id="{_NAME}([^"]*)">')


class Key(NamedTuple):
    """An entry of the legend: a colour and one of SHAPES, or a bar if there is no shape."""

    words: str
    colour: str = OURS
    shape: str = ""


class Curve(NamedTuple):
    """Points in one of SHAPES. A viewer shows the name under the mouse pointer."""

    points: Sequence[tuple[float, float]]
    colour: str = OURS
    shape: str = "line"
    name: str = ""


class Panel(Protocol):
    """A part of a picture with a title and axes of its own: `Curves`, or one that a benchmark defines."""

    @property
    def title(self) -> str:
        """The words above its axes."""

    @property
    def height(self) -> float:
        """Pixels of its axes."""

    @property
    def insets(self) -> tuple[float, float, float]:
        """Pixels that words take left of its axes, right of them and below."""

    def draw(self, axes: Axes, right: float) -> None:
        """Draw on `axes`; `right` is the width in pixels of the space right of them."""


@dataclass(frozen=True)
class Curves:
    """Implements `Panel` by curves; `xs` are the marks of the x axis, without any matplotlib chooses them."""

    title: str
    curves: Sequence[Curve]
    xs: Sequence[tuple[float, str]] = ()
    x_title: str = ""
    is_log: bool = True
    height: float = 170

    @property
    def insets(self) -> tuple[float, float, float]:
        """Pixels that words take left of its axes, right of them and below."""
        return NUMBERS, 8, 36 if self.x_title else 20

    def draw(self, axes: Axes, right: float) -> None:
        from matplotlib.ticker import LogLocator

        if not any(y for curve in self.curves for _, y in curve.points):
            axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
            return
        for curve in (each for each in self.curves if each.points):
            name = _NAME + curve.name if curve.name else None
            axes.plot(*zip(*curve.points, strict=True), **{**SHAPES[curve.shape], "color": curve.colour, "gid": name})
        axes.grid(axis="y")
        axes.set_xlabel(self.x_title, loc="right")
        if self.is_log:  # zeros, of chunks that arrived together, are below the axis
            axes.set_yscale("log", nonpositive="clip")
            low, high = axes.get_ylim()
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        else:
            axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
        axes.yaxis.set_major_formatter("{x:,g}")
        if self.xs:
            axes.set_xticks(*zip(*self.xs, strict=True))
            first, last = self.xs[0][0], self.xs[-1][0]
            axes.set_xlim(first - 0.03 * (last - first), last + 0.03 * (last - first))
        else:
            axes.xaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()


class Picture(NamedTuple):
    """A picture: rows of columns of panels, below a title and a legend."""

    title: str
    subtitle: str
    keys: Sequence[Key]
    rows: Sequence[Sequence[Sequence[Panel]]]


def save(picture: Picture, file: Path) -> None:
    """Write a picture, if matplotlib is installed; a reader of the file never sees a part of it."""
    if _can_draw():
        part = file.with_suffix(".part")
        part.write_text(svg(picture), encoding="utf-8")
        part.replace(file)


def written(*files: Path) -> str:
    """Return a line that names the written files, and the package that the others need."""
    missing = [] if _can_draw() else [file.name for file in files if file.suffix == ".svg"]
    needs = f"; {', '.join(missing)} needs matplotlib: pip install matplotlib" if missing else ""
    return f"written: {', '.join(str(file) for file in files if file.name not in missing)}{needs}"


def svg(picture: Picture) -> str:
    """Draw a picture."""
    import matplotlib
    from matplotlib.figure import Figure

    boxes, height = _lay_out(picture)
    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings.update(STYLE)
        figure = Figure(figsize=(WIDTH / 96, height / 96))
        _head(figure, picture, height)
        for panel, box in boxes:
            bottom, width = 1 - (box.top + panel.height) / height, (box.end - box.begin) / WIDTH
            figure.text(box.left / WIDTH, 1 - (box.top - 12) / height, panel.title, size=9.75, weight="bold")
            axes = figure.add_axes((box.begin / WIDTH, bottom, width, panel.height / height))
            panel.draw(axes, box.right - box.end)
        stream, about = io.StringIO(), {"Title": picture.title, "Date": None, "Creator": None}
        figure.savefig(stream, format="svg", transparent=True, metadata=about)
    return _NAMED.sub(r"<g><title>\1</title>", stream.getvalue())


class _Box(NamedTuple):
    """The edges of a panel in pixels: left and right, between them the begin and end of its axes, and their top."""

    left: float
    begin: float
    end: float
    right: float
    top: float


def _lay_out(picture: Picture) -> tuple[list[tuple[Panel, _Box]], float]:
    """Return the box of each panel, and the height of the picture."""
    boxes, top = [], float(MARGIN + TITLE + SUBTITLE * bool(picture.subtitle) + KEYS * bool(picture.keys))
    for columns in picture.rows:
        width, bottom = (WIDTH - 2 * MARGIN + GAP) / max(len(columns), 1) - GAP, top
        for number, panels in enumerate(columns):
            begin, end = (max((panel.insets[side] for panel in panels), default=0) for side in (0, 1))
            left, y = MARGIN + number * (width + GAP), top
            for panel in panels:
                boxes.append((panel, _Box(left, left + begin, left + width - end, left + width, y + HEAD)))
                y += HEAD + panel.height + panel.insets[2] + BELOW
            bottom = max(bottom, y)
        top = bottom
    return boxes, top


def _head(figure: Figure, picture: Picture, height: float) -> None:
    """Write title, subtitle and legend."""
    left, y = MARGIN / WIDTH, MARGIN + 14.0
    figure.text(left, 1 - y / height, picture.title, size=12.75, weight="bold")
    if picture.subtitle:
        figure.text(left, 1 - (y := y + SUBTITLE) / height, picture.subtitle)
    if picture.keys:
        figure.legend(
            [_handle(key) for key in picture.keys], [key.words for key in picture.keys], ncols=len(picture.keys),
            loc="center left", bbox_to_anchor=(left, 1 - (y + KEYS - 4) / height), frameon=False, borderpad=0,
            borderaxespad=0, columnspacing=1.5, handlelength=1.5,
        )  # fmt: skip


def _handle(key: Key) -> Artist:
    """Return the drawing beside the words of a legend entry."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not key.shape:
        return Patch(color=key.colour)
    style = {"color": key.colour, **SHAPES[key.shape]}
    if key.shape == "limit":
        style |= {"linestyle": "", "marker": "|", "markersize": 11, "markeredgewidth": style["linewidth"]}
    return Line2D([], [], **style)


def _can_draw() -> bool:
    return find_spec("matplotlib") is not None
