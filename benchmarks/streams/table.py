"""The figures of the benchmark `streams` in the terminal."""

from __future__ import annotations

import math
from typing import NamedTuple

from benchmarks.streams.figures import CellFigures, Figures, Run

NAME = 19


class Column(NamedTuple):
    """One figure: its heading, its key, and how it is written."""

    head: str
    figure: str
    format: str
    width: int


COLUMNS = (
    Column("events/s", "events_per_s", ",.0f", 9),
    Column("CPU us/event", "us_per_event", ".1f", 14),
    Column("B/event", "bytes_per_event", ".0f", 9),
    Column("added ms p50", "age_p50_ms", ".1f", 14),
    Column("p99", "age_p99_ms", ".1f", 7),
    Column("lag ms p99", "lag_p99_ms", ".1f", 12),
    Column("KiB idle", "kib_per_idle_stream", ".1f", 10),
    Column("active", "kib_per_active_stream", ".1f", 8),
)
SLOW_LINES = (
    ("ms between tokens p99, prompt readers alone", "gap_p99_alone_ms", ".1f"),
    ("the same among slow and vanishing ones", "gap_p99_ms", ".1f"),
    ("KiB per stalled stream, the kernel's included", "kib_per_stalled_stream", ".1f"),
    ("of these the kernel's", "kernel_kib_per_stalled_stream", ".1f"),
    ("most tokens made beyond the last handed to the socket", "tokens_beyond", ".0f"),
    ("most tokens made for a stalled one in a window", "tokens_while_stalled", ".0f"),
    ("clients that vanished and came back", "returns", ".0f"),
)


def report(figures: Figures) -> list[str]:
    """Return the table of all cells, what slow clients did, and every promise."""
    lines = ["", f"{'':{NAME}}" + "".join(f"{column.head:>{column.width}}" for column in COLUMNS)]
    lines += [_row(found) for found in figures.cells if found.runs]
    slow = figures.cell("slow")
    if slow is not None:
        lines += ["", slow.cell.title]
        lines += [f"  {text:56}{_spread(slow, key, style)}" for text, key, style in SLOW_LINES if slow.values(key)]
    lines += ["", *(str(verdict) for verdict in figures.verdicts() if verdict.limit.most or not verdict.is_met)]
    if not any(verdict.limit.most == 0 and not verdict.is_met for verdict in figures.verdicts()):
        num_events = sum(int(value) for found in figures.cells for value in found.values("events"))
        lines.append(f"{num_events:,} events in the windows; no token was lost, doubled or wrong")
    return lines + [f"failed: {name}: {says}" for name, says in figures.failures.items()]


def progress_line(found: CellFigures) -> str:
    """Say what the newest run of a cell came to."""
    run: Run = found.runs[-1]
    return (
        f"{found.cell.name}: {run['events_per_s']:,.0f} events/s, {run['us_per_event']:.1f} us each, "
        f"{run['server_cores']:.0%} of a core, ready but without it {run['server_waited']:.1%} of the time, "
        f"clients {run['busiest_client_cores']:.0%}"
    )


def _row(found: CellFigures) -> str:
    cells = "".join(f"{_number(found.median(column.figure), column.format):>{column.width}}" for column in COLUMNS)
    spread = found.values("us_per_event")
    low_high = f"  {min(spread):.1f}-{max(spread):.1f} us in {len(spread)} rounds" if len(spread) > 1 else ""
    return f"{found.cell.name:{NAME}}{cells}{low_high}"


def _spread(found: CellFigures, key: str, style: str) -> str:
    values = found.values(key)
    text = f"{found.median(key):{style}}"
    return text if len(values) == 1 else f"{text} ({min(values):{style}}-{max(values):{style}})"


def _number(value: float, style: str) -> str:
    return "-" if math.isnan(value) else f"{value:{style}}"
