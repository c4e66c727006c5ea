"""The sides: rates from seconds, llama.cpp's own rates, vLLM's environment, and peers that are missing."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.cpu import sides
from benchmarks.cpu.cells import NUM_NEW, Cell, Rates
from benchmarks.cpu.sides import GeneratingSide, LlamaCppSide, missing_peers, vllm_environ
from benchmarks.side import SideFailed

TINY = Cell("tiny", "bf16", 2)

FAKE_BENCH = """#!/bin/sh
echo "$@" >>"$0.calls"
echo "noise on standard error" >&2
[ -e "$0.fails" ] && exit 3
case "$*" in *"-fa on"*) speed=200 ;; *) speed=300 ;; esac
for batch in $(echo "$*" | sed 's/.*-npl \\([0-9,]*\\).*/\\1/' | tr , ' '); do
    echo "{\\"pl\\": $batch, \\"speed_pp\\": 1000.5, \\"speed_tg\\": 99.5, \\"speed\\": $speed, \\"t\\": 0}"
done
"""


class FakeProgram:
    """A fake `Side` that answers with seconds by the number of tokens."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.requests = seconds, []

    def ask(self, **request):
        self.requests.append(request)
        return {"seconds": self.seconds[request["num_new_tokens"][0]]}


@pytest.fixture
def bench(tmp_path) -> Path:
    """A fake llama-batched-bench that is faster without flash attention."""
    program = tmp_path / "llama-batched-bench"
    program.write_text(FAKE_BENCH)
    program.chmod(0o755)
    return program


def test_rates_come_from_two_generations_with_different_prompts():
    program = FakeProgram({NUM_NEW: 3.0, 1: 1.0, 8: 1.0})
    rates = GeneratingSide("x", program, "").measure(TINY, "0")
    assert rates == Rates(2 * 63 / 2.0, 2 * 128 / 1.0)
    prompts = {tuple(prompt) for request in program.requests for prompt in request["prompts"]}
    assert len(prompts) == 2 * len(program.requests), "no prompt is used twice"


def test_a_cell_is_warmed_up_once():
    program = FakeProgram({NUM_NEW: 3.0, 1: 1.0, 8: 1.0})
    side = GeneratingSide("x", program, "")
    for cell, turn in ((TINY, "0"), (TINY, "1"), (Cell("tiny", "bf16", 8), "0")):
        side.measure(cell, turn)
    assert sum(request["num_new_tokens"][0] == 8 for request in program.requests) == 2


def test_indistinguishable_times_are_measured_again_and_then_fail():
    program = FakeProgram({NUM_NEW: 1.0, 1: 1.0, 8: 1.0})
    with pytest.raises(SideFailed, match="too busy"):
        GeneratingSide("x", program, "").measure(TINY, "0")
    assert sum(request["num_new_tokens"][0] == NUM_NEW for request in program.requests) == 3 * TINY.repeats


def test_llama_cpp_reports_its_rates_with_the_faster_attention(bench, tmp_path):
    side = LlamaCppSide(bench, Path("model.gguf"), tmp_path / "log")
    assert side.measure(TINY, "0") == Rates(99.5, 1000.5)
    calls = Path(f"{bench}.calls").read_text().splitlines()
    assert ["-fa on" in call for call in calls] == [True, False, False]
    assert f"-npp 128 -ntg 64 -npl {','.join(['2'] * TINY.repeats)}" in calls[-1]
    assert "-ngl 0" in calls[-1]
    assert "-fa off" in side.settings


@pytest.mark.parametrize("how", ["fails", "is missing", "says nothing"])
def test_a_failure_of_llama_cpp_is_reported(bench, tmp_path, how):
    if how == "fails":
        Path(f"{bench}.fails").touch()
    elif how == "says nothing":
        bench.write_text("#!/bin/sh\n")
    else:
        bench.unlink()
    with pytest.raises(SideFailed, match="llama-batched-bench"):
        LlamaCppSide(bench, Path("model.gguf"), tmp_path / "log")


def test_vllm_gets_all_cores_and_the_installed_libraries_to_preload(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "PEERS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 1}, raising=False)
    assert vllm_environ()["VLLM_CPU_OMP_THREADS_BIND"] == "1,3"
    assert vllm_environ()["LD_PRELOAD"] == ""
    (tmp_path / "vllm" / "lib").mkdir(parents=True)
    (tmp_path / "vllm" / "lib" / "libiomp5.so").touch()
    assert vllm_environ()["LD_PRELOAD"] == str(tmp_path / "vllm" / "lib" / "libiomp5.so")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)), raising=False)
    assert vllm_environ()["VLLM_CPU_OMP_THREADS_BIND"] == "auto"


def test_missing_peers_have_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "PEERS", tmp_path)
    monkeypatch.setattr(sides, "LLAMA_PROGRAM", tmp_path / "none")
    assert set(missing_peers()) >= {"vLLM", "llama.cpp"}
    assert "make peers" in missing_peers()["vLLM"]
    monkeypatch.setattr(sides, "PROGRAMS", tmp_path / "none")
    assert set(missing_peers()) == {"vLLM", "llama.cpp", "transformers"}


@pytest.mark.long
def test_quires_program_generates_and_measures_the_machine(tmp_path):
    """With the embedded model."""
    side = sides.Opener(tmp_path).quire(Path("guide"), "bf16")
    try:
        assert side.generate([[5, 6, 7], [8]], [3, 2]) > 0
        machine = side.probe(1 << 20)
        assert 0 < machine.read < 1e13
        assert 0 < machine.bf16 < 1e15
        assert machine.int8 > machine.bf16 / 100, "in the same unit; a busy machine may slow down one of both"
    finally:
        side.close()
    assert json.loads(side.settings.split(" ", 3)[3])["model"] == "guide"


def test_a_model_that_quire_rejects_is_reported(tmp_path):
    with pytest.raises(SideFailed, match="ModelRefused"):
        sides.Opener(tmp_path).quire(tmp_path / "nowhere", "bf16")
