"""The rounds of `cpu --gguf`: for each cell both sides in turn, repeatedly, so that disturbances affect both.

A cell that cannot be measured is left out with one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu.gguf.cells import FORMATS, LOADS, SETS, SMOLLM2, Cell
from benchmarks.cpu.gguf.dummies import DUMMIES
from benchmarks.cpu.gguf.figures import CellFigures, Figures, Quality
from benchmarks.cpu.gguf.files import Files, contents
from benchmarks.cpu.gguf.sides import LlamaCppFile, QuireFile, environ_of, program_folder
from benchmarks.side import Program, SideFailed

NUM_WINDOWS = {SMOLLM2: 4}
"""Windows of 512 tokens by which the quality is compared; one where nothing is written here."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells, and how often each is measured."""

    cells: Sequence[Cell]
    rounds: int


class Rounds:
    """Runs a plan and fills its figures; `begin` hears what begins, `done` when a cell is complete."""

    def __init__(
        self, plan: Plan, files: Files, figures: Figures, begin: Callable[[str], None], done: Callable[[], None]
    ) -> None:
        self._plan, self._files, self._figures = plan, files, figures
        self._begin, self._done = begin, done

    def run(self) -> None:
        """Measure cell by cell."""
        for cell in self._plan.cells:
            try:
                self._cell(cell)
            except SideFailed as error:
                self._figures.left_out.append(f"{cell} is left out: {error}")
            finally:
                self._files.discard(cell.shape, FORMATS[cell.format].theirs)
            self._done()

    def _cell(self, cell: Cell) -> None:
        form = FORMATS[cell.format]
        self._begin(f"{cell}: its files")
        ours, theirs = (self._files.file(cell.shape, kind) for kind in (form.ours, form.theirs))
        is_dummy = cell.shape in DUMMIES
        figures = CellFigures(cell, contents(theirs), None if is_dummy else self._quality(cell, ours, theirs))
        self._begin(f"{cell}: loading")
        llama_cpp = LlamaCppFile(theirs, cell.set, self._files.folder / "llama.cpp.log")
        log = self._files.folder / "Quire.log"
        with closing(QuireFile.open(ours, form.quantization, cell.set, log, is_dummy)) as quire:
            self._figures.cells.append(figures)
            figures.loading_s = {side.name: side.loading_s for side in (quire, llama_cpp)}
            figures.passing_bytes = quire.passing_bytes
            if figures.contents.num_experts:
                figures.distinct = {load.name: quire.distinct_experts(load) for load in LOADS if load.num_steps}
            self._figures.commands |= {f"{side.name}, {cell}": side.settings for side in (quire, llama_cpp)}
            for turn in range(self._plan.rounds):
                self._begin(f"{cell}: round {turn + 1}")
                figures.read_rates.append(quire.read_rate(figures.contents.matrix_bytes))
                sides: list[QuireFile | LlamaCppFile] = [quire, llama_cpp]
                for side in sides if turn % 2 == 0 else reversed(sides):
                    figures.rates.setdefault(side.name, []).append(side.measure(str(turn)))

    def _quality(self, cell: Cell, ours: Path, theirs: Path) -> Quality:
        """Return how exact both sides are with the instructions of the cell."""
        self._begin(f"{cell}: its quality")
        settings = {"model": str(ours), "dtype": "bfloat16"}
        quantization = FORMATS[cell.format].quantization
        if quantization is not None:
            settings["quantization"] = quantization
        log, num_windows = self._files.folder / "quality.log", NUM_WINDOWS.get(cell.shape, 1)
        return measure_quality(ours, settings, theirs, log, num_windows, cell.set)


def measure_quality(
    reference: Path, ours: dict[str, str], theirs: Path, log: Path, num_windows: int, set_name: str
) -> Quality:
    """Compare both sides with the file `reference` in float32, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cpu.gguf.quality"]
    with Program(command, log, environ_of(set_name)) as program:
        return program.ask(
            do="measure",
            reference=str(reference),
            ours=ours,
            theirs=str(theirs),
            program=str(program_folder(set_name) / "llama-perplexity"),
            num_windows=num_windows,
            instruction_set=SETS[set_name],
        )
