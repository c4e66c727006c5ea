"""Tables for the terminal, and numbers as people read them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from app.observe.terminal import Colour, Terminal


def table(terminal: Terminal, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a line for the head and one for each row; the first column stands at the left, others at the right.

    Columns are as wide as they must be. A row may be shorter than the head, or longer: what has no head is a remark.
    """
    rows = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows] if column < len(row)) for column in range(len(head))]
    first, *others = [_line(row, widths) for row in [head, *rows]]
    return [terminal.paint(terminal.text(first), Colour.BOLD), *map(terminal.text, others)]


def number(value: float) -> str:
    """Write a whole number as it is, any other with three digits or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 or value == int(value) else f"{value:#.3g}"


def spread(values: Sequence[float]) -> str:
    """Write the median of some values with the lowest and the highest; of one value only that; of none a dash."""
    if not values:
        return "-"
    median = number(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({number(min(values))}-{number(max(values))})"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        f"{text:<{width}}" if not index else f"{text:>{width}}"
        for index, (text, width) in enumerate(zip(row, widths, strict=False))
    ]
    return "  ".join([*cells, *row[len(widths) :]]).rstrip()
