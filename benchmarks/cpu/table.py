"""The figures of the benchmark `cpu` in the terminal: tables of medians and ratios, and bars. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from app.observe.terminal import Colour, Terminal
from benchmarks.cpu.cells import KINDS, OURS, Kind, Probe
from benchmarks.cpu.figures import CellFigures, Figures, MixedFigures, Spread, Verdict

LABEL, NAME = 22, 26  # columns of a cell's and of a side's name


def table(figures: Figures, terminal: Terminal) -> list[str]:
    """Return the tables: each cell's rate beside the best peer's, what is required, and the share of the limit."""
    lines: list[str] = []
    for kind in KINDS:
        rows = [_row(cell, kind, terminal) for cell in figures.cells if OURS in cell.sides]
        if rows:
            head = (
                f"{kind + ', tok/s':{LABEL}}{'Quire (min-max)':>24}  {'best peer':19}{'times':>6}  {'required':10}limit"
            )
            lines += ["", terminal.paint(head, Colour.BOLD), *rows]
    return lines + _mixed_rows(figures.mixed, terminal)


def bars(figures: Figures, terminal: Terminal) -> list[str]:
    """Return a bar for each rate, as long as its share of what the machine allows at most."""
    lines: list[str] = []
    for kind in KINDS:
        if figures.shown:
            lines += ["", terminal.paint(f"{kind}: the whole width is the machine's limit", Colour.BOLD)]
        for cell in figures.shown:
            lines += _bars(cell, kind, terminal)
    return lines


def machine_line(machine: Probe) -> str:
    """Say what the machine can do."""
    return (
        f"reads {machine.read / 1e9:.1f} GB/s; multiplies {machine.bf16 / 1e9:,.0f} GFLOP/s in bf16, "
        f"{machine.int8 / 1e9:,.0f} GOP/s in int8 ({machine.how})"
    )


def verdict_line(verdict: Verdict) -> str:
    """Say how many times as fast Quire was, and by how much it missed what is required."""
    line = f"{verdict.what}: {verdict.ratio:.2f} times {verdict.peer}"
    if verdict.required is None:
        return line
    if verdict.is_met:
        return f"{line}, {verdict.required:g} required"
    return f"{line}, {verdict.required:g} required: {1 - verdict.ratio / verdict.required:.0%} too slow"


def _row(cell: CellFigures, kind: Kind, terminal: Terminal) -> str:
    found = cell.verdict(kind)
    ours = _spread(cell.spread(OURS, kind))
    share = f"{cell.shares(kind).of_limit:.0%}"
    if found is None:
        return terminal.text(f"{cell.cell!s:{LABEL}}{ours:>24}  {'':37}{share:>5}")
    peer = f"{found.peer:10}{rate_text(cell.spread(found.peer, kind).median):>9}"
    return terminal.text(f"{cell.cell!s:{LABEL}}{ours:>24}  {peer}{found.ratio:>6.2f}  {_required(found):10}{share:>5}")


def _mixed_rows(mixed: MixedFigures, terminal: Terminal) -> list[str]:
    if OURS not in mixed.sides:
        return []
    lines = ["", terminal.paint("mixed load, new tok/s (min-max)", Colour.BOLD)]
    verdicts = {verdict.peer: verdict for verdict in mixed.verdicts()}
    for side in mixed.sides:
        line = f"{side:{NAME}}{_spread(mixed.spread(side)):>24}"
        if (verdict := verdicts.get(side)) is not None:
            line += f"  Quire is {verdict.ratio:.2f} times as fast  {_required(verdict)}"
        lines.append(terminal.text(line))
    return lines


def _required(verdict: Verdict) -> str:
    if verdict.required is None:
        return "-"
    return f"{verdict.required:g} {'met' if verdict.is_met else 'MISSED'}"


def _bars(cell: CellFigures, kind: Kind, terminal: Terminal) -> Iterator[str]:
    medians = {side: cell.spread(side, kind).median for side in cell.sides}
    whole = max(cell.limit(kind), *medians.values())
    for index, (side, rate) in enumerate(medians.items()):
        label = str(cell.cell) if index == 0 else ""
        bar = terminal.bar(rate / whole, terminal.width - LABEL - 22)
        bar = terminal.paint(bar, Colour.BLUE if side == OURS else Colour.DIM)
        yield f"{label:{LABEL}}{side:11}{bar} {rate_text(rate)}"


def _spread(found: Spread) -> str:
    return f"{rate_text(found.median)} ({rate_text(found.low)}-{rate_text(found.high)})"


def rate_text(rate: float) -> str:
    """Write tokens per second with as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
