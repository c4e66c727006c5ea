"""The benchmark `cpu`: the plan of a command line, output files, exit codes, and figures after an interrupt."""

import json
from xml.etree import ElementTree

import pytest

from app.commands.options import Parser
from app.contract.errors import ConfigurationError
from benchmarks.__main__ import main
from benchmarks.cpu import command as bench_cpu
from benchmarks.cpu.command import add_options, make_plan, print_report
from tests.benchmarks.cpu.samples import sample_figures


def plan(*arguments: str, missing: dict[str, str] | None = None):
    """The plan for a command line, and the lines about missing peers."""
    parser = Parser(prog="python -m benchmarks cpu", description="")
    add_options(parser)
    return make_plan(parser.parse(arguments), missing or {})


def test_by_default_everything_is_measured():
    found, left_out = plan()
    assert {cell.shape for cell in found.cells} == {"tiny", "s135", "q05"}
    assert (found.rounds, found.mixed_rounds) == (5, 3)
    assert found.peers == {"llama.cpp", "vLLM", "transformers"}
    assert {cell.format for cell in found.cells} == {"bf16", "int8", "int4"}
    assert left_out == []


def test_shapes_formats_and_peers_are_chosen_by_name():
    found, _ = plan("--shapes", "s135", "--dtypes", "bf16", "--only", "VLLM,quire", "--rounds", "2")
    assert {(cell.shape, cell.format) for cell in found.cells} == {("s135", "bf16")}
    assert (found.rounds, found.peers) == (2, {"vLLM"})
    assert plan("--only", "quire")[0].peers == frozenset()


def test_quick_has_fewer_rounds_and_shapes():
    found, _ = plan("--quick")
    assert {cell.shape for cell in found.cells} == {"tiny", "s135"}
    assert (found.rounds, found.mixed_rounds) == (2, 1)
    assert plan("--quick", "--shapes", "q05")[0].cells[0].shape == "q05"


def test_a_missing_peer_is_left_out_with_one_line():
    found, left_out = plan(missing={"vLLM": "not installed"})
    assert found.peers == {"llama.cpp", "transformers"}
    assert "vLLM is left out: not installed" in left_out
    assert not any("vLLM" in line for line in plan("--only", "quire", missing={"vLLM": "x"})[1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--shapes", "s13"), "did you mean 's135'"),
        (("--dtypes", "int2"), "known: bf16, int8, int4"),
        (("--only", "lama.cpp"), "'llama.cpp'"),
        (("--rounds", "0"), "at least 1"),
        (("--shapes", "q05", "--dtypes", "int4"), "nothing is left"),
    ],
)
def test_invalid_options_are_rejected(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        plan(*arguments)


@pytest.mark.long
def test_without_peers_quire_and_the_machine_are_measured(tmp_path, monkeypatch, capsys):
    """The complete command, on the smallest model."""
    monkeypatch.setattr(bench_cpu, "PEERS", tmp_path / "none")
    monkeypatch.setattr(bench_cpu, "CELLS", [cell for cell in bench_cpu.CELLS if cell.batch == 1])
    arguments = ["cpu", "--shapes", "tiny", "--dtypes", "bf16", "--rounds", "1", "--only", "quire"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    (cell,) = json.loads((tmp_path / "out" / "cpu.json").read_text())["cells"]
    assert cell["tokens_per_second"]["Quire"]["decode"][0] > 0
    assert cell["limit"]["decode"] > 0
    ElementTree.parse(tmp_path / "out" / "cpu.svg")
    out = capsys.readouterr().out
    assert "tiny bf16 batch 1" in out
    assert "GB/s" in out


@pytest.mark.parametrize(("stop", "code"), [(None, 1), (KeyboardInterrupt, 130), (SystemExit, None)])
def test_a_missed_ratio_is_printed_and_an_interrupt_keeps_the_figures(tmp_path, monkeypatch, capsys, stop, code):
    sample = sample_figures()

    def fake_run(self) -> None:
        self._figures.cells, self._figures.mixed = sample.cells, sample.mixed
        if stop is not None:
            raise stop

    monkeypatch.setattr(bench_cpu.Rounds, "run", fake_run)
    monkeypatch.setattr(bench_cpu, "PEERS", tmp_path / "none")
    arguments = ["cpu", "--out", str(tmp_path / "out")]
    if code is None:
        with pytest.raises(SystemExit):
            main(arguments)
    else:
        assert main(arguments) == code
    assert len(json.loads((tmp_path / "out" / "cpu.json").read_text())["cells"]) == 2
    assert "beside vLLM: s135 bf16 batch 8 prefill is 1 times, at least 1.5 times: MISSED" in capsys.readouterr().out


def test_the_report_of_an_empty_run_is_empty(capsys):
    figures = sample_figures()
    figures.cells, figures.mixed.rates = [], {}
    print_report(figures)
    assert capsys.readouterr().out == ""
