"""Sample figures of the benchmark `cpu`, for the tests of report and chart."""

from benchmarks.cpu.cells import Cell, Probe, Rates
from benchmarks.cpu.figures import CellFigures, Figures

MACHINE = Probe(read=38e9, bf16=468e9, int8=900e9, how="by hand")
CELL = Cell("s135", "bf16", 8)
ABOUT = {"rounds": 3, "machine": {"cpu": "A & B <CPU>", "cores": 2}}


def sample_cell(cell: Cell = CELL, **medians: float) -> CellFigures:
    """A cell in which each side has three decode rates around `medians`, and 10 times these as prefill rates."""
    figures = CellFigures(cell, probes=[MACHINE] * 3)
    for side, rate in medians.items():
        name = {"llama": "llama.cpp"}.get(side, side)
        figures.rates[name] = [Rates(rate * factor, 10 * rate * factor) for factor in (0.9, 1.0, 1.2)]
    return figures


def sample_figures() -> Figures:
    """Two cells and the mixed load; the prefill of the first is too slow."""
    figures = Figures(ABOUT)
    figures.cells = [
        sample_cell(Quire=830.0, llama=290.0, vLLM=271.0),
        sample_cell(Cell("tiny", "int8", 1), Quire=9000.0, llama=1900.0),
    ]
    figures.cells[0].rates["vLLM"] = [Rates(271.0, 8300.0)]
    figures.mixed.rates = {"vLLM": [220.0], "Quire": [700.0, 710.0], "transformers, continuous": [63.0, 61.0]}
    return figures
