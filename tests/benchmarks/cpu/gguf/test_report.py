"""The table of `cpu --gguf`."""

from app.observe.terminal import Terminal
from benchmarks.cpu.cells import OURS
from benchmarks.cpu.gguf.figures import Figures
from benchmarks.cpu.gguf.report import LESS_EXACT, report
from tests.benchmarks.cpu.gguf.samples import sample_figures, sample_mixture


def test_each_load_of_a_cell_is_a_line_with_ratio_requirement_and_both_divergences():
    lines = report(sample_figures(), Terminal(160))
    assert "q06 Q4_K_M: 500 MB: Q4_K 70%, Q6_K 30%" in lines
    (line,) = [line for line in lines if line.startswith("q06 Q4_K_M native, 8 rows")]
    assert line.split()[5:] == ["30", "(27-36)", "10", "(9-12)", "3.00", "2", "met", "8%", "0.001", "0.004"]


def test_what_is_faster_at_a_larger_divergence_says_so_and_a_stretch_is_told():
    lines = [line for line in report(sample_figures(), Terminal(160)) if line.startswith("smollm2 int8 avx2")]
    assert all(line.endswith(LESS_EXACT) for line in lines)
    assert ["not reached" in line for line in lines] == [False, True, True, False]
    assert "2.5 MISSED" in lines[2]
    assert not any(LESS_EXACT in line for line in report(sample_figures(), Terminal(160)) if line.startswith("q06"))


def test_a_cell_with_one_side_has_no_ratio():
    figures = sample_figures()
    del figures.cells[0].rates[OURS]
    (line,) = [line for line in report(figures, Terminal(160)) if line.startswith("q06 Q4_K_M native, 1 row")]
    assert line.split()[5] == "-"
    assert "met" not in line


def test_without_measurements_the_report_is_empty():
    assert report(Figures({}), Terminal()) == []


def test_what_else_is_judged_of_dummies_stands_below_the_table():
    lines = report(Figures({}, [sample_mixture()]), Terminal(160))
    assert lines[-1] == "mixtral Q8_0 native: GGUF, memory beyond what stays is 0.3 GB, at most 1 GB: met"
    assert sum("reading" in line for line in lines) == 4
