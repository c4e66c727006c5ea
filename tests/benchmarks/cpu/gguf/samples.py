"""Sample figures of `cpu --gguf`."""

from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.cells import LOADS, Cell
from benchmarks.cpu.gguf.figures import CellFigures, Figures
from benchmarks.cpu.gguf.files import Contents
from benchmarks.cpu.gguf.sides import THEIRS

CONTENTS = Contents(500_000_000, 400_000_000, {"Q4_K": 0.7, "Q6_K": 0.3})


def sample_cell(cell: Cell, times: float, kl: tuple[float, float] = (0.001, 0.004)) -> CellFigures:
    """A cell in which Quire is `times` as fast as llama.cpp under all loads."""
    quality = {"ours": kl[0], "theirs": kl[1]}
    figures = CellFigures(cell, CONTENTS, quality, read_rates=[20e9] * 3)
    for side, rate in ((OURS, 10.0 * times), (THEIRS, 10.0)):
        figures.rates[side] = [{load.name: rate * factor for load in LOADS} for factor in (0.9, 1.0, 1.2)]
    return figures


def sample_figures() -> Figures:
    """Two cells; the first meets all that is required, the second less, at a larger divergence."""
    cells = [
        sample_cell(Cell("q06", "Q4_K_M", "native"), 3.0),
        sample_cell(Cell("smollm2", "int8", "avx2"), 2.2, kl=(0.005, 0.004)),
    ]
    return Figures({"rounds": 3}, cells)
