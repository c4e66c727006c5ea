"""The memory benchmark's figures as a picture: bars of ours, ticks of the paper's; for light and dark pages."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

WIDTH, MARGIN, GAP = 760, 16, 32
ROW, BAR, HEAD = 22, 12, 34
TOP = 52
COLUMN = (WIDTH - 2 * MARGIN - GAP) / 2
LABEL, VALUE = 150, 46  # columns of text left and right of a bar
TRACK = COLUMN - LABEL - VALUE

TITLES = {
    "waste of the whole memory": "KV memory wasted (ShareGPT)",
    "parallel sampling": "Blocks saved: n answers to a prompt",
    "beam search": "Blocks saved: beam search",
    "shared prefix": "Blocks saved: requests with a common prefix",
}
COLUMNS = (("waste of the whole memory", "parallel sampling"), ("beam search", "shared prefix"))

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
  .head { font-weight: 600; font-size: 13px }
  .track { fill: #8c959f; fill-opacity: 0.16 }
  .ours { fill: #1f6feb }
  .other { fill: #8c959f }
  .paper { stroke: #bc4c00; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .ours { fill: #4493f8 }
    .paper { stroke: #f0883e }
  }
"""


class Bar(Protocol):
    """What is drawn: a share between 0 and 1 and the paper's, if it has one."""

    @property
    def section(self) -> str:
        """The group of bars."""

    @property
    def load(self) -> str:
        """The load it was measured with."""

    @property
    def name(self) -> str:
        """What was measured."""

    @property
    def value(self) -> float:
        """Our figure."""

    @property
    def paper(self) -> float | None:
        """The paper's figure."""


def plot(bars: Iterable[Bar]) -> str:
    """Return the SVG."""
    by_section: dict[str, list[Bar]] = {}
    for bar in bars:
        by_section.setdefault(bar.section, []).append(bar)
    parts, bottom = [], 0.0
    for index, sections in enumerate(COLUMNS):
        x, y = MARGIN + index * (COLUMN + GAP), float(TOP)
        for section in sections:
            found = by_section.get(section, [])
            parts += _panel(TITLES[section], found, x, y)
            y += HEAD + len(found) * ROW
        bottom = max(bottom, y)
    height = round(bottom + MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title">',
        '<title id="title">KV memory wasted, and blocks saved by sharing, beside the PagedAttention paper</title>',
        f"<style>{STYLE}</style>",
        *_legend(),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _legend() -> list[str]:
    y = MARGIN + 12
    return [
        f'<rect class="ours" x="{MARGIN}" y="{y - 10}" width="22" height="{BAR}" rx="2"/>',
        _text(MARGIN + 28, y, "Quire, blocks of 16 tokens"),
        f'<rect class="other" x="{MARGIN + 206}" y="{y - 10}" width="22" height="{BAR}" rx="2"/>',
        _text(MARGIN + 234, y, "reserved in one piece, same load"),
        f'<line class="paper" x1="{MARGIN + 452}" x2="{MARGIN + 452}" y1="{y - 13}" y2="{y + 5}"/>',
        _text(MARGIN + 462, y, "measured in the PagedAttention paper"),
    ]


def _panel(title: str, bars: Sequence[Bar], x: float, y: float) -> list[str]:
    parts = [_text(x, y + 18, title, "head")]
    for index, bar in enumerate(bars):
        parts += _row(bar, x, y + HEAD - 6 + index * ROW)
    return parts


def _row(bar: Bar, x: float, y: float) -> list[str]:
    left, middle = x + LABEL, y + ROW / 2
    is_ours = not bar.section.startswith("waste") or bar.name == "blocks"
    label = bar.name if bar.section.startswith(("waste", "shared")) else f"{bar.load.removesuffix('-like')}, {bar.name}"
    parts = [
        _text(x, middle + 4, label),
        f'<rect class="track" x="{left:g}" y="{middle - BAR / 2:g}" width="{TRACK:g}" height="{BAR}" rx="2"/>',
        f'<rect class="{"ours" if is_ours else "other"}" x="{left:g}" y="{middle - BAR / 2:g}" '
        f'width="{max(bar.value * TRACK, 1):.1f}" height="{BAR}" rx="2"/>',
    ]
    if bar.paper is not None:
        at = left + bar.paper * TRACK
        parts.append(f'<line class="paper" x1="{at:.1f}" x2="{at:.1f}" y1="{middle - 9:g}" y2="{middle + 9:g}"/>')
    parts.append(_text(x + COLUMN, middle + 4, f"{bar.value:.1%}", "end"))
    return parts


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    anchor = ' text-anchor="end"' if kind == "end" else ""
    style = ' class="head"' if kind == "head" else ""
    return f'<text{style} x="{x:g}" y="{y:g}"{anchor}>{escape(text)}</text>'
