"""The figures of the benchmark `cpu` as a picture (SVG, for light and dark pages). No torch.

Bars of one group share a scale that ends at the machine's limit, so their lengths say how much of the machine each side
makes use of; the numbers beside them are tokens per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from benchmarks.cpu.cells import KINDS, OURS, Kind
from benchmarks.cpu.figures import CellFigures, Figures, MixedFigures
from benchmarks.cpu.table import rate_text
from benchmarks.picture import picture, rect, text

WIDTH, MARGIN, GAP = 880, 20, 36
COLUMN = (WIDTH - 2 * MARGIN - GAP) / 2
LABEL, VALUE = 62, 104  # columns of text left and right of the bars
TRACK = COLUMN - LABEL - VALUE
BAR, BAR_GAP, GROUP_GAP, HEAD = 12, 2, 9, 30
TOP = 86
MIXED_LABEL = 170

TITLES = {"decode": "Decode: new tokens per second", "prefill": "Prefill: prompt tokens per second"}
MODELS = {"tiny": "tiny, 9 M weights", "s135": "s135, 135 M weights", "q05": "q05, 494 M weights"}
CLASSES = {OURS: "ours", "llama.cpp": "llama", "vLLM": "vllm"}

LIGHT = """
  .times { font-weight: 700; fill: #0b62d6 }
  .track { fill: #8c959f; fill-opacity: 0.13 }
  .ours { fill: #1f6feb }
  .llama { fill: #8c959f }
  .vllm { fill: #b9a3d6 }
  .other { fill: #d0b48a }
  .limit { stroke: #bc4c00; stroke-width: 2 }
"""
DARK = """
    .times { fill: #6cb0ff }
    .ours { fill: #4493f8 }
    .llama { fill: #7d8590 }
    .vllm { fill: #8a76a8 }
    .other { fill: #8d7650 }
    .limit { stroke: #f0883e }
"""


def chart(figures: Figures, title: str) -> str:
    """Return the SVG: decode left, prefill right, a panel for each model, and the mixed load below."""
    cells = figures.shown
    parts, bottom = [], float(TOP)
    for index, kind in enumerate(KINDS):
        x, y = MARGIN + index * (COLUMN + GAP), float(TOP)
        parts.append(text(x, y - 8, TITLES[kind], "head"))
        for (shape, format_name), group in groupby(cells, key=lambda each: (each.cell.shape, each.cell.format)):
            y += HEAD
            parts.append(text(x, y - 8, f"{MODELS[shape]}, {format_name}", "dim"))
            for cell in group:
                parts += _group(cell, kind, x, y)
                y += len(cell.sides) * (BAR + BAR_GAP) + GROUP_GAP
        bottom = max(bottom, y)
    mixed = _mixed(figures.mixed, bottom + HEAD)
    height = round(bottom + MARGIN + (HEAD + len(figures.mixed.sides) * (BAR + 6) if mixed else 0))
    return picture(title, WIDTH, height, LIGHT, DARK, [*_legend(cells), *parts, *mixed])


def _legend(cells: Sequence[CellFigures]) -> list[str]:
    x, y, parts = MARGIN, MARGIN + 32, []
    for side in dict.fromkeys(side for cell in cells for side in cell.sides):
        parts += [rect(CLASSES[side], x, y - 10, 20, BAR), text(x + 26, y, side)]
        x += 50 + 7 * len(side)
    return [
        *parts,
        f'<line class="limit" x1="{x + 4}" x2="{x + 4}" y1="{y - 12}" y2="{y + 3}"/>',
        text(x + 14, y, "the machine's limit, measured in the same minutes"),
        text(x + 340, y, "1.5×", "times"),
        text(x + 374, y, "Quire against the faster peer"),
    ]


def _group(cell: CellFigures, kind: Kind, x: float, y: float) -> list[str]:
    """Draw the bars of one batch size, and the limit across them."""
    medians = {side: cell.spread(side, kind).median for side in cell.sides}
    limit, left = cell.limit(kind), x + LABEL
    whole, height = max(limit, *medians.values()), len(medians) * (BAR + BAR_GAP) - BAR_GAP
    parts = [
        text(x, y + BAR - 2, f"batch {cell.cell.batch}"),
        f'<rect class="track" x="{left:g}" y="{y:g}" width="{TRACK:g}" height="{height}"/>',
    ]
    for index, (side, rate) in enumerate(medians.items()):
        top = y + index * (BAR + BAR_GAP)
        parts.append(rect(CLASSES[side], left, top, rate / whole * TRACK, BAR))
        parts.append(text(left + TRACK + 6, top + BAR - 2, rate_text(rate), "" if side == OURS else "dim"))
    if (verdict := cell.verdict(kind)) is not None:
        parts.append(text(x + COLUMN, y + BAR - 2, f"{verdict.ratio:.1f}×", "times", "end"))
    at = left + limit / whole * TRACK
    return [*parts, f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 2:g}" y2="{y + height + 2:g}"/>']


def _mixed(mixed: MixedFigures, y: float) -> list[str]:
    if OURS not in mixed.sides:
        return []
    medians = {side: mixed.spread(side).median for side in mixed.sides}
    ratios = {verdict.peer: verdict.ratio for verdict in mixed.verdicts()}
    left, track = MARGIN + MIXED_LABEL, WIDTH - 2 * MARGIN - MIXED_LABEL - VALUE
    parts = [text(MARGIN, y - 8, "32 requests of mixed lengths at once, s135 bf16: new tokens per second", "head")]
    for index, (side, rate) in enumerate(medians.items()):
        top = y + index * (BAR + 6)
        parts.append(text(MARGIN, top + BAR - 2, side))
        parts.append(rect(CLASSES.get(side, "other"), left, top, rate / max(medians.values()) * track, BAR))
        parts.append(text(left + track + 6, top + BAR - 2, rate_text(rate), "" if side == OURS else "dim"))
        if side in ratios:
            parts.append(text(WIDTH - MARGIN, top + BAR - 2, f"{ratios[side]:.1f}×", "times", "end"))
    return parts
