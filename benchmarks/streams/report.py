"""The figures of the benchmark `streams` in the terminal."""

from __future__ import annotations

from app.loadgen.table import number, table
from app.observe.terminal import Terminal
from benchmarks.figures import spread
from benchmarks.streams.figures import FAULTS, CellFigures, Figures, Run

COLUMNS = {
    "events/s": "events_per_s",
    "CPU us/event": "us_per_event",
    "B/event": "bytes_per_event",
    "added ms p50": "age_p50_ms",
    "p99": "age_p99_ms",
    "lag ms p99": "lag_p99_ms",
    "KiB idle": "kib_per_idle_stream",
    "active": "kib_per_active_stream",
}
SLOW_LINES = {
    "ms between tokens p99, prompt readers alone": "gap_p99_alone_ms",
    "the same beside slow and vanishing clients": "gap_p99_ms",
    "KiB per stalled stream, the kernel's included": "kib_per_stalled_stream",
    "of these in the kernel": "kernel_kib_per_stalled_stream",
    "most tokens generated beyond the last one written to the socket": "tokens_beyond",
    "most tokens generated for a stalled stream in a window": "tokens_while_stalled",
    "reconnects of vanishing clients": "returns",
}


def report(figures: Figures, terminal: Terminal) -> list[str]:
    """Return the table of all cells, the figures of slow clients, and the verdicts."""
    measured = [found for found in figures.cells if found.runs]
    lines = ["", *table(terminal, ["", *COLUMNS, "in all rounds"], map(_row, measured))]
    slow = figures.cell("slow")
    if slow is not None:
        rows = [[words, spread(slow.values(key))] for words, key in SLOW_LINES.items() if slow.values(key)]
        lines += ["", *table(terminal, [slow.cell.title, ""], rows)]
    verdicts = figures.verdicts()
    faults = [verdict for verdict in verdicts if verdict.limit.name in FAULTS]
    lines += ["", *(str(verdict) for verdict in verdicts if verdict not in faults or not verdict.is_met)]
    if all(verdict.is_met for verdict in faults):
        num_events = sum(int(value) for found in figures.cells for value in found.values("events"))
        lines.append(f"{num_events:,} events in the windows; no token was lost, doubled or wrong")
    return lines


def progress_line(found: CellFigures) -> str:
    """Return a line with the figures of a cell's newest run."""
    run: Run = found.runs[-1]
    return (
        f"{found.cell.name}: {run['events_per_s']:,.0f} events/s, {run['us_per_event']:.1f} us each, "
        f"{run['server_cores']:.0%} of a core, ready but without it {run['server_waited']:.1%} of the time, "
        f"clients {run['busiest_client_cores']:.0%}"
    )


def _row(found: CellFigures) -> list[str]:
    medians = [number(found.median(key)) if found.values(key) else "-" for key in COLUMNS.values()]
    costs = found.values("us_per_event")
    return [found.cell.name, *medians, f"{number(min(costs))}-{number(max(costs))} us" if len(costs) > 1 else ""]
