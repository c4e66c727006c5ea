"""The figures of `cpu --gguf` and `--families` in the terminal. No torch."""

from __future__ import annotations

from app.loadgen.table import table
from app.observe.terminal import Terminal
from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.cells import LOADS, Load
from benchmarks.cpu.gguf.figures import CellFigures, Figures, required
from benchmarks.cpu.gguf.sides import THEIRS
from benchmarks.figures import spread

HEAD = ("tok/s", "Quire (min-max)", "llama.cpp (min-max)", "times", "required", "reading", "KL Quire", "KL llama.cpp")
LESS_EXACT = "faster at a larger KL"


def report(figures: Figures, terminal: Terminal) -> list[str]:
    """Return the lines of the report: contents of the files, a line for each cell and load, and what else is judged.

    `reading` is the share of the machine's reading of memory that the matrices alone take; KL are divergences from the
    file's weights in float32, in nats.
    """
    cells = [cell for cell in figures.cells if cell.rates]
    if not cells:
        return []
    files = {f"{cell.cell.shape} {cell.cell.format}": str(cell.contents) for cell in cells}
    rows = [_row(cell, load) for cell in cells for load in LOADS]
    further = [str(verdict) for cell in cells for verdict in cell.verdicts()[len(LOADS) :]]
    return ["", *(f"{name}: {what}" for name, what in files.items()), "", *table(terminal, HEAD, rows), *further]


def _row(figures: CellFigures, load: Load) -> list[str]:
    share = figures.read_share(load)
    row = [f"{figures.cell}, {load.name}", *(spread(figures.values(side, load)) for side in (OURS, THEIRS))]
    limit = required(figures.cell, load)
    if figures.is_complete:
        verdict = figures.verdict(load)
        row += [f"{verdict.figure:.2f}", f"{limit.value:g} {'met' if verdict.is_met else 'MISSED'}"]
    else:
        row += ["", f"{limit.value:g}"]
    row += ["-" if share is None else f"{share:.0%}"]
    quality = figures.quality
    row += [f"{quality[side]:.2g}" if quality else "-" for side in ("ours", "theirs")]
    remarks = [verdict.stretch] if figures.is_complete and (verdict := figures.verdict(load)).stretch else []
    if figures.is_complete and figures.is_less_exact and figures.ratio(load) > 1:
        remarks.append(LESS_EXACT)
    return [*row, *remarks]
