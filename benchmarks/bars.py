"""A panel of horizontal bars, for the pictures of `app/loadgen/plots.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from app.loadgen.plots import LINES, OURS, SHAPES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PEERS = (LINES, "#a98ad4", "#b98f4f")
ROW, BETWEEN, CHAR, NOTE = 16, 9, 6.4, 50  # pixels
PT = 72 / 96  # points of a pixel


class Bar(NamedTuple):
    """A row: a bar, perhaps a longer one behind it, marks across it, and words beside it.

    Attributes:
        label: at the left; a bar without one stands close to the one above.
        full_scale: the value that would fill the row; 0 is the largest value of the panel.
        behind: the value of the bar behind.
        marks: values at which shapes of `SHAPES` are drawn; None is not drawn.
        note: at the far right, in bold.
    """

    label: str
    value: float
    words: str
    colour: str = OURS
    full_scale: float = 0.0
    behind: float = 0.0
    marks: Mapping[str, float | None] = {}
    note: str = ""


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
        """The end of each bar's row, in rows. If bars without labels form groups, there is space between groups."""
        between = BETWEEN / ROW if any(not bar.label for bar in self.rows) else 0
        return list(accumulate(1 + between * bool(bar.label and number) for number, bar in enumerate(self.rows)))

    def draw(self, axes: Axes, right: float) -> None:
        """Draw the bars; `right` is the width in pixels of the space right of the axes."""
        ends, largest = self._ends, max(map(_largest, self.rows)) or 1.0
        axes.set(xlim=(0, 1), ylim=(ends[-1], 0), xticks=[])
        axes.set_yticks([end - 0.5 for end in ends], [bar.label for bar in self.rows])
        axes.spines[:].set_visible(False)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "annotation_clip": False}
        note: dict[str, Any] = {**beside, "ha": "right", "weight": "bold", "color": OURS}
        for bar, end in zip(self.rows, ends, strict=True):
            scale, middle = bar.full_scale or largest, end - 0.5
            axes.barh(middle, 1, 0.75, color=LINES, alpha=0.15)
            if bar.behind:
                axes.barh(middle, bar.behind / scale, 0.75, color=bar.colour, alpha=0.4)
            axes.barh(middle, max(bar.value / scale, 0.002), 0.75, color=bar.colour)
            for shape, value in bar.marks.items():
                if value is not None:
                    axes.plot([value / scale] * 2, [end - 1, end], clip_on=False, **SHAPES[shape])
            axes.annotate(bar.words, (1, middle), (6 * PT, 0), **beside)
            if bar.note:
                axes.annotate(bar.note, (1, middle), (right * PT, 0), **note)


def _largest(bar: Bar) -> float:
    return max(bar.value, bar.behind, *(mark or 0.0 for mark in bar.marks.values()))
