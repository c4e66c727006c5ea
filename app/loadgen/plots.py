"""Pictures of benchmarks, drawn by matplotlib as SVG for light and dark pages: bars, and curves over two axes.

Who draws says what: panels in columns, and keys to their colours. How it looks stands here: no background, colours and
a grey that can be read on white and on black, words as text. The same picture is the same bytes every time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, LIMIT, TEXT, LINES = "#2f81f7", "#db6d28", "#79828c", "#8c959f"
PEERS = (LINES, "#a98ad4", "#b98f4f")
SERIES = ("#1a93a8", OURS, "#8e6ae0", "#d05ba0", "#cf6a2b", "#a87f1a")
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "line": {"linestyle": "-"},
    "dots": {"linestyle": "", "marker": "o"},
    "dotted": {"linestyle": "-", "marker": "o"},
    "triangles": {"linestyle": "", "marker": "^"},
    "limit": {"color": LIMIT, "linewidth": 2.0},
    "floor": {"color": TEXT, "linewidth": 1.0, "linestyle": (0, (2, 2))},
}
"""How points are drawn; `limit` and `floor` are marks across bars, and lines across curves."""

# Sizes are pixels, but for those of matplotlib's own settings, which are points.
WIDTH, MARGIN, GAP, BELOW = 880, 20, 34, 14
TITLE, SUBTITLE, KEYS, HEAD = 34, 20, 24, 28
ROW, BETWEEN, CHAR, NOTE, NUMBERS = 16, 9, 6.4, 50, 48
PT = 72 / 96
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
_NAMED = "name: "  # begins the id of what has a name


class Key(NamedTuple):
    """What a colour stands for, or one of SHAPES; without a shape it is that of a bar."""

    words: str
    colour: str = OURS
    shape: str = ""


class Bar(NamedTuple):
    """A row: a bar, perhaps a longer one behind it, marks across it, and words beside it.

    Attributes:
        label: at the left; a bar without one stands close to the one above.
        whole: what would fill the row; 0 is the largest value of the panel.
        marks: where to draw which of SHAPES; None is nowhere.
        note: at the far right, in bold.
    """

    label: str
    value: float
    words: str
    colour: str = OURS
    whole: float = 0.0
    beyond: float = 0.0
    marks: Mapping[str, float | None] = {}
    note: str = ""


class Curve(NamedTuple):
    """Points in one of SHAPES; of triangles only x counts. The name shows where one points at it."""

    points: Sequence[tuple[float, float]]
    colour: str = OURS
    shape: str = "line"
    name: str = ""


class Bars(NamedTuple):
    """A panel of bars, from above; at least one."""

    title: str
    rows: Sequence[Bar]

    @property
    def height(self) -> float:
        """Pixels of its axes."""
        return ROW * self._ends[-1]

    @property
    def insets(self) -> tuple[float, float, float]:
        """Pixels that words take left of its axes, right of them and below."""
        label, words = max(len(bar.label) for bar in self.rows), max(len(bar.words) for bar in self.rows)
        return CHAR * label + 8, CHAR * words + 8 + NOTE * any(bar.note for bar in self.rows), 0

    @property
    def _ends(self) -> list[float]:
        """Where each bar's row ends, in rows; where some belong together there is room between groups."""
        between = BETWEEN / ROW if any(not bar.label for bar in self.rows) else 0
        return list(accumulate(1 + between * bool(bar.label and number) for number, bar in enumerate(self.rows)))

    def draw(self, axes: Axes, right: float) -> None:
        """Draw it; right of the axes are so many pixels."""
        ends, longest = self._ends, max(map(_longest, self.rows)) or 1.0
        axes.set(xlim=(0, 1), ylim=(ends[-1], 0), xticks=[])
        axes.set_yticks([end - 0.5 for end in ends], [bar.label for bar in self.rows])
        axes.spines[:].set_visible(False)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
        note: dict[str, Any] = {**beside, "ha": "right", "weight": "bold", "color": OURS}
        for bar, end in zip(self.rows, ends, strict=True):
            whole, middle = bar.whole or longest, end - 0.5
            axes.barh(middle, 1, 0.75, color=LINES, alpha=0.15)
            if bar.beyond:
                axes.barh(middle, bar.beyond / whole, 0.75, color=bar.colour, alpha=0.4)
            axes.barh(middle, max(bar.value / whole, 0.002), 0.75, color=bar.colour)
            for shape, value in bar.marks.items():
                if value is not None:
                    axes.plot([value / whole] * 2, [end - 1, end], clip_on=False, **SHAPES[shape])
            axes.annotate(bar.words, (1, middle), (6 * PT, 0), **beside)
            if bar.note:
                axes.annotate(bar.note, (1, middle), (right * PT, 0), **note)


class Curves(NamedTuple):
    """A panel of curves over two axes.

    Attributes:
        xs: marks of the lower axis, which goes from the first to the last; none leaves them to matplotlib.
        floor: where a dashed line lies.
    """

    title: str
    curves: Sequence[Curve]
    xs: Sequence[tuple[float, str]] = ()
    x_title: str = ""
    is_log: bool = True
    is_log_x: bool = False
    floor: float | None = None
    height: float = 170

    @property
    def insets(self) -> tuple[float, float, float]:
        """Pixels that words take left of its axes, right of them and below."""
        return NUMBERS, 8, 36 if self.x_title else 20

    def draw(self, axes: Axes, right: float) -> None:
        """Draw it; right of the axes are so many pixels."""
        if not any(y for curve in self.curves if curve.shape != "triangles" for _, y in curve.points):
            axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
            return
        if self.is_log:  # what is 0 lies below: chunks that came together
            axes.set_yscale("log", nonpositive="clip")
        if self.is_log_x:
            axes.set_xscale("log")
        heights = count(0.04, 0.07)  # of triangles, as shares of the axis
        for curve in (each for each in self.curves if each.points):
            xs, ys = zip(*curve.points, strict=True)
            name = _NAMED + curve.name if curve.name else None
            look: dict[str, Any] = {**SHAPES[curve.shape], "color": curve.colour, "gid": name}
            if curve.shape == "triangles":
                axes.plot(xs, [next(heights)] * len(xs), transform=axes.get_xaxis_transform(), **look)
            else:
                axes.plot(xs, ys, **look)
        if self.floor is not None:
            axes.axhline(self.floor, **SHAPES["floor"])
        self._mark(axes)

    def _mark(self, axes: Axes) -> None:
        """Mark the axes."""
        from matplotlib.ticker import LogLocator

        axes.grid(axis="both" if self.is_log_x else "y")
        axes.set_xlabel(self.x_title, loc="right")
        low, high = axes.get_ylim()
        if self.is_log:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        else:
            axes.set_ylim(0, 1.05 * high)
        axes.yaxis.set_major_formatter("{x:,g}")
        if self.xs:
            axes.set_xticks(*zip(*self.xs, strict=True))
            first, last = self.xs[0][0], self.xs[-1][0]
            axes.set_xlim(first - 0.03 * (last - first), last + 0.03 * (last - first))
        else:
            axes.xaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()


class Picture(NamedTuple):
    """A whole picture: rows of columns of panels, which have titles, heights and axes of their own."""

    title: str
    subtitle: str
    keys: Sequence[Key]
    rows: Sequence[Sequence[Sequence[Bars | Curves]]]


def save(picture: Picture, file: Path) -> None:
    """Write a picture, if matplotlib is installed; the file is always whole."""
    if _can_draw():
        part = file.with_suffix(".part")
        part.write_text(svg(picture), encoding="utf-8")
        part.replace(file)


def written(*files: Path) -> str:
    """Say in one line which files were written, and what would draw those that were not."""
    drawn = [str(file) for file in files if file.suffix != ".svg" or _can_draw()]
    missing = [file.name for file in files if str(file) not in drawn]
    needs = f"; {', '.join(missing)} needs matplotlib: pip install matplotlib" if missing else ""
    return f"written: {', '.join(drawn)}{needs}"


def svg(picture: Picture) -> str:
    """Draw a picture."""
    import matplotlib
    from matplotlib.figure import Figure

    places, height = _lay_out(picture)
    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings.update(STYLE)
        figure = Figure(figsize=(WIDTH / 96, height / 96))
        _head(figure, picture, height)
        for panel, at in places:
            box = (
                at.begin / WIDTH,
                1 - (at.top + panel.height) / height,
                (at.end - at.begin) / WIDTH,
                panel.height / height,
            )
            figure.text(at.left / WIDTH, 1 - (at.top - 12) / height, panel.title, size=9.75, weight="bold")
            panel.draw(figure.add_axes(box), at.right - at.end)
        stream, about = io.StringIO(), {"Title": picture.title, "Date": None, "Creator": None}
        figure.savefig(stream, format="svg", transparent=True, metadata=about)
    return re.sub(f'<g id="{_NAMED}([^"]*)">', r"<g><title>\1</title>", stream.getvalue())


class _Place(NamedTuple):
    """Where a panel lies: its edges, where between them its axes begin and end, and their top."""

    left: float
    begin: float
    end: float
    right: float
    top: float


def _lay_out(picture: Picture) -> tuple[list[tuple[Bars | Curves, _Place]], float]:
    """Return where each panel lies, and how high the picture is."""
    places, top = [], float(MARGIN + TITLE + SUBTITLE * bool(picture.subtitle) + KEYS * bool(picture.keys))
    for columns in picture.rows:
        width, bottom = (WIDTH - 2 * MARGIN + GAP) / max(len(columns), 1) - GAP, top
        for number, panels in enumerate(columns):
            begin, end = (max((panel.insets[side] for panel in panels), default=0) for side in (0, 1))
            left, y = MARGIN + number * (width + GAP), top
            for panel in panels:
                places.append((panel, _Place(left, left + begin, left + width - end, left + width, y + HEAD)))
                y += HEAD + panel.height + panel.insets[2] + BELOW
            bottom = max(bottom, y)
        top = bottom
    return places, top


def _head(figure: Figure, picture: Picture, height: float) -> None:
    """Write title, subtitle and keys."""
    left, y = MARGIN / WIDTH, MARGIN + 14.0
    figure.text(left, 1 - y / height, picture.title, size=12.75, weight="bold")
    if picture.subtitle:
        figure.text(left, 1 - (y := y + SUBTITLE) / height, picture.subtitle)
    if picture.keys:
        figure.legend(
            [_sample(key) for key in picture.keys], [key.words for key in picture.keys], ncols=len(picture.keys),
            loc="center left", bbox_to_anchor=(left, 1 - (y + KEYS - 4) / height), frameon=False, borderpad=0,
            borderaxespad=0, columnspacing=1.5, handlelength=1.5,
        )  # fmt: skip


def _sample(key: Key) -> Artist:
    """Return what stands beside a key's words."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not key.shape:
        return Patch(color=key.colour)
    look = {"color": key.colour, **SHAPES[key.shape]}
    if key.shape == "limit":
        look |= {"linestyle": "", "marker": "|", "markersize": 11, "markeredgewidth": look["linewidth"]}
    return Line2D([], [], **look)


def _longest(bar: Bar) -> float:
    return max(bar.value, bar.beyond, *(mark or 0.0 for mark in bar.marks.values()))


def _can_draw() -> bool:
    return find_spec("matplotlib") is not None
