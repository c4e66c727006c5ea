"""What the pictures of the benchmarks have in common: SVG that fits light and dark pages. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_LIGHT = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 17px }
  .head { font-weight: 600; font-size: 13px }
  .dim { fill: #57606a }
"""
_DARK = """
    text { fill: #e6edf3 }
    .dim { fill: #9198a1 }
"""


def picture(title: str, width: float, height: float, light: str, dark: str, parts: Iterable[str]) -> str:
    """Return a whole SVG with `title` at its top; `light` and `dark` are further CSS rules for `parts`."""
    style = (
        f"{_LIGHT}{light.strip(chr(10))}\n  @media (prefers-color-scheme: dark) {{{_DARK}{dark.strip(chr(10))}\n  }}\n"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{style}</style>",
        text(20, 30, title, "title"),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rules(*parts: str) -> list[str]:
    return [rule for part in parts for rule in part.splitlines() if rule]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    """Return a text at a place; `kind` is its CSS class."""
    style = f' class="{kind}"' if kind else ""
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{style} x="{x:g}" y="{y:g}"{place}>{escape(words)}</text>'


def rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle with round corners, at least one pixel wide."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{height:g}" rx="2"/>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
