"""The figures of the benchmark `streams` as a picture (SVG, for light and dark pages).

Three panels of bars: CPU per token event with the bare protocol and what is promised marked, what the server adds to a
token's age, and memory per stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.picture import line, picture, rect, text
from benchmarks.streams.cells import BARE
from benchmarks.streams.figures import CellFigures, Figures

WIDTH, MARGIN = 880, 20
LABEL, VALUE = 262, 120  # columns of text left and right of the bars
TRACK = WIDTH - 2 * MARGIN - LABEL - VALUE
BAR, ROW, HEAD, TOP = 12, 19, 40, 78

LIGHT = """
  .track { fill: #8c959f; fill-opacity: 0.13 }
  .ours { fill: #1f6feb }
  .light { fill: #1f6feb; fill-opacity: 0.4 }
  .bare { fill: #8c959f }
  .limit { stroke: #bc4c00; stroke-width: 2 }
  .floor { stroke: #57606a; stroke-width: 1; stroke-dasharray: 3 3 }
"""
DARK = """
    .ours { fill: #4493f8 }
    .light { fill: #4493f8 }
    .bare { fill: #7d8590 }
    .limit { stroke: #f0883e }
    .floor { stroke: #9198a1 }
"""


class Bar(NamedTuple):
    """One row: the value drawn strongly, a further one drawn behind it, and the marks across."""

    label: str
    value: float
    beyond: float | None
    words: str
    is_bare: bool = False
    limit: float | None = None
    floor: float | None = None


def chart(figures: Figures, title: str) -> str:
    """Return the SVG of whatever was measured."""
    panels = [
        ("CPU microseconds per token event, paced", _costs(figures, is_paced=True)),
        ("CPU microseconds per token event, as fast as it can", _costs(figures, is_paced=False)),
        ("Milliseconds from a token's making to its reader: median, and 99th percentile behind it", _ages(figures)),
        ("KiB of the server per stream: waiting, and active behind it", _memory(figures)),
    ]
    parts, y = [], float(TOP)
    for head, bars in panels:
        if bars:
            parts += _panel(head, bars, y)
            y += HEAD + ROW * len(bars)
    height = round(y + MARGIN / 2)
    return picture(title, WIDTH, height, LIGHT, DARK, [*_legend(), *parts])


def _legend() -> list[str]:
    y = MARGIN + 34
    return [
        line("limit", MARGIN + 4, y - 12, MARGIN + 4, y + 3),
        text(MARGIN + 14, y, "at most, promised"),
        line("floor", MARGIN + 144, y - 12, MARGIN + 144, y + 3),
        text(MARGIN + 154, y, "the bare protocol, in the same run"),
    ]


def _costs(figures: Figures, *, is_paced: bool) -> list[Bar]:
    bare = figures.cell("bare" if is_paced else "bare-saturated")
    floor = None if bare is None else bare.median("us_per_event")
    limits = {limit.cell: limit.most for limit in figures.limits if limit.figure == "us_per_event"}
    bars = []
    for found in figures.cells:
        is_full = found.cell.name.endswith("saturated") or found.cell.rate is None
        if not found.runs or is_full == is_paced:
            continue
        values, name = found.values("us_per_event"), found.cell.name
        words = f"{found.median('us_per_event'):.1f}"
        if len(values) > 1:
            words += f"  ({min(values):.1f}-{max(values):.1f})"
        is_bare = found.cell.serve == BARE
        floor_here = None if is_bare else floor
        bars.append(
            Bar(_label(found), found.median("us_per_event"), None, words, is_bare, limits.get(name), floor_here)
        )
    return bars


def _ages(figures: Figures) -> list[Bar]:
    return [
        Bar(_label(found), low, high, f"{low:.1f}, {high:.1f}", found.cell.serve == BARE)
        for found in figures.cells
        if found.runs and (high := found.median("age_p99_ms")) and (low := found.median("age_p50_ms"))
    ]


def _memory(figures: Figures) -> list[Bar]:
    limits = {limit.cell: limit.most for limit in figures.limits if limit.figure == "kib_per_active_stream"}
    bars = []
    for found in figures.cells:
        idle, active = found.median("kib_per_idle_stream"), found.median("kib_per_active_stream")
        if found.runs and not math.isnan(active) and found.cell.serve != BARE:
            limit = limits.get(found.cell.name)
            bars.append(Bar(_label(found), max(idle, 0.0), active, f"{idle:.1f}, {active:.1f}", limit=limit))
    return bars


def _label(found: CellFigures) -> str:
    return f"{found.cell.title}, {found.cell.num_streams:,}"


def _panel(head: str, bars: Sequence[Bar], y: float) -> list[str]:
    parts = [text(MARGIN, y + 14, head, "head")]
    whole = max(max(bar.value, bar.beyond or 0.0, bar.limit or 0.0) for bar in bars) or 1.0
    left, top = MARGIN + LABEL, y + 26
    for bar in bars:
        parts.append(text(MARGIN, top + BAR - 2, bar.label))
        parts.append(f'<rect class="track" x="{left}" y="{top:g}" width="{TRACK}" height="{BAR}"/>')
        if bar.beyond is not None:
            parts.append(rect("light", left, top, bar.beyond / whole * TRACK, BAR))
        parts.append(rect("bare" if bar.is_bare else "ours", left, top, bar.value / whole * TRACK, BAR))
        parts.append(text(left + TRACK + 8, top + BAR - 2, bar.words, "dim" if bar.is_bare else ""))
        for kind, at in (("floor", bar.floor), ("limit", bar.limit)):
            if at is not None:
                x = left + min(at / whole, 1.0) * TRACK
                parts.append(line(kind, x, top - 3, x, top + BAR + 3))
        top += ROW
    return parts
