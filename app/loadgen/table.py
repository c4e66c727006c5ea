"""Tables of text for the terminal, and the text of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.observe.terminal import Colour, Terminal


def table(terminal: Terminal, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a line for the head and one for each row; the first column is left-aligned, the others right-aligned.

    A row may have fewer cells than the head, or more: further cells follow as remarks.
    """
    rows = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows] if column < len(row)) for column in range(len(head))]
    first, *others = [_line(row, widths) for row in [head, *rows]]
    return [terminal.paint(terminal.text(first), Colour.BOLD), *map(terminal.text, others)]


def number(value: float) -> str:
    """Return the text of a number: integers in full, others with three significant digits or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 or value == int(value) else f"{value:#.3g}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        f"{text:<{width}}" if not index else f"{text:>{width}}"
        for index, (text, width) in enumerate(zip(row, widths, strict=False))
    ]
    return "  ".join([*cells, *row[len(widths) :]]).rstrip()
