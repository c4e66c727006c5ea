"""Sample figures of `cpu --gguf` and `--families`."""

from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.cells import LOADS, Cell
from benchmarks.cpu.gguf.figures import CellFigures, Figures
from benchmarks.cpu.gguf.files import Contents
from benchmarks.cpu.gguf.sides import THEIRS

CONTENTS = Contents(500_000_000, 400_000_000, {"Q4_K": 0.7, "Q6_K": 0.3})
MIXED = Contents(2_000_000_000, 1_000_000_000, {"Q8_0": 1.0}, 8, (400_000_000, 480_000_000))


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


def sample_mixture() -> CellFigures:
    """A mixture of two layers, as fast as llama.cpp, which takes 2 s to load what takes Quire 5."""
    figures = sample_cell(Cell("mixtral", "Q8_0", "native"), 1.0)
    figures.contents, figures.quality = MIXED, None
    figures.distinct = {"1 row": [2, 2], "8 rows": [6, 7], "32 rows": [8, 8]}
    figures.loading_s = {OURS: [5.0], THEIRS: [1.0, 2.0, 3.0]}
    figures.passing_bytes = 300_000_000
    return figures
