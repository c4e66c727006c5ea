"""The report in the terminal: the ratio, the requirement and the bars of every cell."""

from app.observe.terminal import Terminal
from benchmarks.cpu.figures import Figures
from benchmarks.cpu.report import bars, machine_line, report
from tests.benchmarks.cpu.samples import CELL, MACHINE, sample_cell, sample_figures


def test_each_cell_is_a_line_with_ratio_and_requirement():
    lines = report(sample_figures(), Terminal(100))
    (decode, prefill) = [line for line in lines if line.startswith("s135 bf16 batch 8")]
    assert decode.split()[4:6] == ["830", "(747-996)"]
    assert decode.split()[6:10] == ["llama.cpp", "290", "2.86", "2.6"]
    assert "met" in decode
    assert "MISSED" in prefill


def test_the_mixed_load_has_a_line_for_each_peer():
    lines = report(sample_figures(), Terminal(100))
    assert any(line.startswith("vLLM") and line.split()[-3:] == ["3.20", "2", "met"] for line in lines)
    assert any(line.startswith("transformers, continuous") and "7 met" in line for line in lines)


def test_without_peers_the_share_of_the_limit_is_shown():
    figures = Figures({}, cells=[sample_cell(Quire=830.0)])
    (decode, _) = [line for line in report(figures, Terminal(100)) if line.startswith("s135")]
    assert decode.split()[-1].endswith("%")
    assert "llama.cpp" not in decode


def test_bars_are_those_of_cells_with_a_requirement_and_fit_the_terminal():
    lines = bars(sample_figures(), Terminal(80))
    assert sum("Quire" in line for line in lines) == 2, "decode and prefill of one cell"
    assert all(len(line) <= 80 for line in lines)
    ours, theirs = (next(line for line in lines if name in line).count("█") for name in ("Quire", "llama.cpp"))
    assert ours > 2 * theirs > 0


def test_a_terminal_without_unicode_gets_ascii():
    figures = sample_figures()
    assert all(line.isascii() for line in report(figures, Terminal(80, is_unicode=False)))
    assert all(line.isascii() for line in bars(figures, Terminal(80, is_unicode=False)))


def test_without_measurements_the_report_is_empty():
    assert report(Figures({}), Terminal()) == bars(Figures({}), Terminal()) == []
    assert report(Figures({}, cells=[sample_cell(CELL)]), Terminal()) == []


def test_the_line_of_the_machine_says_how_it_was_measured():
    assert machine_line(MACHINE).startswith("reads 38.0 GB/s; multiplies 468 GFLOP/s in bf16, 900 GOP/s in int8 (by")
