"""The figures of the benchmark `cpu` in the terminal: tables of medians and ratios, and bars. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from app.loadgen.table import number, table
from app.observe.terminal import Colour, Terminal
from benchmarks.cpu.cells import KINDS, OURS, Kind, Probe
from benchmarks.cpu.figures import CellFigures, Figures, MixedFigures, Ratio
from benchmarks.figures import spread

LABEL = 22  # columns of a cell's name


def report(figures: Figures, terminal: Terminal) -> list[str]:
    """Return each cell's rate beside the best peer's, what is required, and the share of the machine's limit."""
    lines: list[str] = []
    for kind in KINDS:
        rows = [_row(cell, kind) for cell in figures.cells if OURS in cell.sides]
        if rows:
            head = [f"{kind}, tok/s", "Quire (min-max)", "best peer", "", "times", "required", "limit"]
            lines += ["", *table(terminal, head, rows)]
    return lines + _mixed(figures.mixed, terminal)


def bars(figures: Figures, terminal: Terminal) -> list[str]:
    """Return a bar for each rate, as long as its share of what the machine allows at most."""
    lines: list[str] = []
    for kind in KINDS:
        if figures.shown:
            lines += ["", terminal.paint(f"{kind}: the full width is the machine's limit", Colour.BOLD)]
        for cell in figures.shown:
            lines += _bars(cell, kind, terminal)
    return lines


def machine_line(machine: Probe) -> str:
    """Say what the machine can do."""
    return (
        f"reads {machine.read / 1e9:.1f} GB/s; multiplies {machine.bf16 / 1e9:,.0f} GFLOP/s in bf16, "
        f"{machine.int8 / 1e9:,.0f} GOP/s in int8 ({machine.how})"
    )


def _row(cell: CellFigures, kind: Kind) -> list[str]:
    ratio = cell.ratio(kind)
    peer = [ratio.peer, number(cell.median(ratio.peer, kind))] if ratio else ["", ""]
    return [str(cell.cell), spread(cell.values(OURS, kind)), *peer, *_times(ratio), f"{cell.shares(kind).of_limit:.0%}"]


def _mixed(mixed: MixedFigures, terminal: Terminal) -> list[str]:
    if OURS not in mixed.sides:
        return []
    ratios = {ratio.peer: ratio for ratio in mixed.ratios()}
    rows = [[side, spread(mixed.rates[side]), *_times(ratios.get(side))] for side in mixed.sides]
    return ["", *table(terminal, ["mixed load, new tok/s", "median (min-max)", "times", "required"], rows)]


def _times(ratio: Ratio | None) -> tuple[str, str]:
    """Return how many times as fast Quire is, and what is required."""
    if ratio is None:
        return "", ""
    verdict = f"{ratio.required.value:g} {'met' if ratio.is_met else 'MISSED'}" if ratio.required else "-"
    return f"{ratio.ratio:.2f}", verdict


def _bars(cell: CellFigures, kind: Kind, terminal: Terminal) -> Iterator[str]:
    medians = {side: cell.median(side, kind) for side in cell.sides}
    full_scale = max(cell.limit(kind), *medians.values())
    for index, (side, rate) in enumerate(medians.items()):
        label = str(cell.cell) if index == 0 else ""
        bar = terminal.bar(rate / full_scale, terminal.width - LABEL - 22)
        bar = terminal.paint(bar, Colour.BLUE if side == OURS else Colour.DIM)
        yield f"{label:{LABEL}}{side:11}{bar} {number(rate)}"
