"""`cpu --gguf`: the plan of a command line, missing programs, output and exit code."""

import json

import pytest

from app.contract.errors import ConfigurationError
from benchmarks.__main__ import main
from benchmarks.cpu import command as bench_cpu
from benchmarks.cpu.gguf import command
from benchmarks.cpu.gguf.cells import FAMILIES, GGUF, SETS, SHAPES
from benchmarks.cpu.gguf.command import check_peers, make_plan
from tests.benchmarks.cpu.gguf.samples import sample_figures


def test_by_default_everything_is_measured():
    plan = make_plan(GGUF, None, None, None, 5)
    assert len(plan.cells) == len(set(plan.cells)) == len(SHAPES) * len(GGUF.known_formats) * len(SETS)
    assert len(make_plan(FAMILIES, None, None, None, 5).cells) == 2 * len(FAMILIES.formats)


def test_shapes_formats_and_sets_are_chosen_by_name():
    plan = make_plan(GGUF, "q06", "q4_k_m,Q8_0", "AVX2", 1)
    assert [str(cell) for cell in plan.cells] == ["q06 Q4_K_M avx2", "q06 Q8_0 avx2"]
    for names in (("q05", None, None), (None, "Q4_K", None), (None, None, "sse")):
        with pytest.raises(ConfigurationError, match="unknown"):
            make_plan(GGUF, *names, 1)
    with pytest.raises(ConfigurationError, match="nothing is left"):
        make_plan(FAMILIES, "mixtral", "BF16", None, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gguf", "--only", "quire"), "--only is not for --gguf and --families"),
        (("--gguf", "--rounds", "0"), "at least 1"),
        (("--gguf", "--dtypes", "bf16"), "known: Q4_0"),
        (("--families", "--shapes", "q06"), "known: qwen3moe"),
        (("--sets", "avx2"), "for --gguf and --families only"),
    ],
)
def test_options_that_do_not_fit_are_rejected(arguments, says, capsys):
    assert main(["cpu", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_program_is_named_with_what_builds_it(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "program_folder", lambda name: tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"llama-batched-bench; `make peers PEERS='llama.cpp gguf'` builds it"):
        check_peers(make_plan(GGUF, None, None, "avx2", 1))
    for name in ("native/llama-batched-bench", "avx2/llama-batched-bench", "native/llama-perplexity"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("avx2/llama-perplexity", "native/llama-quantize"):
        with pytest.raises(ConfigurationError, match=name):
            check_peers(make_plan(GGUF, None, None, None, 1))
        (tmp_path / name).touch()
    check_peers(make_plan(GGUF, None, None, None, 1))


def test_a_run_in_which_all_was_left_out_is_not_passed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "check_peers", lambda plan: None)
    monkeypatch.setattr(command, "PEERS", tmp_path)
    monkeypatch.setattr(command.Rounds, "run", lambda self: self._figures.left_out.append("x is left out: it broke"))
    monkeypatch.setattr(bench_cpu, "busy_cores", lambda seconds: 0.0)
    assert main(["cpu", "--gguf", "--out", str(tmp_path / "out")]) == 1
    assert "missed: x is left out: it broke" in capsys.readouterr().out


def test_figures_are_printed_written_and_judged(tmp_path, monkeypatch, capsys):
    def run(self) -> None:
        self._figures.cells += sample_figures().cells
        self._figures.left_out.append("x is left out: it broke")
        self._done()

    monkeypatch.setattr(command, "check_peers", lambda plan: None)
    monkeypatch.setattr(command, "PEERS", tmp_path)
    monkeypatch.setattr(command.Rounds, "run", run)
    monkeypatch.setattr(bench_cpu, "busy_cores", lambda seconds: 0.0)
    assert main(["cpu", "--gguf", "--rounds", "3", "--out", str(tmp_path / "out")]) == 1
    found = json.loads((tmp_path / "out" / "cpu_gguf.json").read_text())
    assert found["benchmark"] == "cpu --gguf" and found["rounds"] == 3 and len(found["cells"]) == 2
    out = capsys.readouterr().out
    assert "missed: x is left out: it broke" in out
    assert "missed: smollm2 int8 avx2: GGUF, int8, 32 rows is 2.2 times" in out
